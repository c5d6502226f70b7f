"""Choose the measured configuration of a claim: by group, device and versions.

A *hard* mismatch makes a record useless: another group, shapes, dtypes or template, another kind or
architecture of the device, other cores, another rounding of products. A *soft* one lets it be used
and is told: another board or CPU of the same architecture, other versions of the packages. The
template refuses configurations that are no longer in its design space. A file whose records are all
of other devices is told once.
"""

import json
import os
from collections.abc import Sequence

from ...core.contract.template import Claim, Refusal
from ...core.contract.tuned import Lookup, Tuned, untuned
from ...device import Device
from .key import Key
from .records import Records, default_records
from .tuning_records import Best, TuningRecords

_NAME = 2  # position of the device's name in Key.device


def tuned_configs(db: str | os.PathLike[str] | None = None) -> Lookup:
    """Make the function by which the scheduling stage asks for configurations.

    Parameters
    ----------
    db
        A file of records, which must exist; ``TVM_FUSION_RECORDS`` when omitted.

    Raises
    ------
    UserError
        For a file that does not exist, is damaged or is something else.
    """
    records = default_records() if db is None else Records.open(db, must_exist=True)
    if records is None:
        return untuned
    known = TuningRecords(records)
    is_told = False

    def lookup(claim: Claim, device: Device) -> Tuned | Refusal | None:
        nonlocal is_told
        key = Key.of(claim.group, claim.template.name, device)
        found = [(best, differences(best.key, key)) for best in known.alike(key)]
        usable = [(len(d), best, d) for best, d in found if d is not None]
        if not usable:
            others = sorted({best.key.device for best, _ in found} - {key.device})
            if is_told or not others:
                return None
            is_told = True
            return Refusal(
                "records_of_other_devices",
                f"{records.path.name} has measured these kernels on {_named(others)} and not on "
                f"{_named([key.device])}: defaults are used here, and for other such groups; tune "
                "on this device.",
            )
        _, best, different = min(usable, key=lambda entry: entry[0])
        if best.us >= best.default_us:
            return None
        return Tuned(
            best.config, best.us, best.default_us, _source(records, best), _note(different)
        )

    return lookup


def differences(record: Key, wanted: Key) -> list[str] | None:
    """List the soft mismatches of a record, in words; ``None`` where there is a hard one."""
    theirs, ours = json.loads(record.device), json.loads(wanted.device)
    names = theirs.pop(_NAME), ours.pop(_NAME)
    if theirs != ours:
        return None
    found = [] if names[0] == names[1] else [f"on {names[0]}"]
    versions = json.loads(record.versions)
    for package, version in json.loads(wanted.versions).items():
        other = versions.get(package)
        if other == version:
            continue
        if package == "template":
            return None
        found.append(f"with {package} {other}")
    return found


def _named(devices: Sequence[str]) -> str:
    """Name devices as keys have them: kind, architecture, name, a CPU's cores, flags."""
    found = []
    for device in devices:
        kind, arch, name, cores, *flags = json.loads(device)
        found.append(" ".join([kind, arch, f"({name})", f"{cores} cores" if cores else "", *flags]))
    return " and ".join(" ".join(text.split()) for text in found)


def _source(records: Records, best: Best) -> str:
    return f"record {best.number} of {records.path.name} ({best.date[:10]}, {best.trials} trials)"


def _note(different: list[str]) -> str:
    return f", measured {' and '.join(different)}" if different else ""
