"""The planner's profile database for one compilation: which file, and whether to measure."""

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from .._tvm.fork import has_run_kernels
from ..config import FusionConfig
from ..core.decisions import Decision, record
from ..device import TargetSpec
from ..errors import UserError
from ..fusion.database.comparisons import Comparisons, Question
from ..fusion.database.key import device_text, versions
from ..fusion.database.records import Records, default_records
from ..fusion.database.schema import VARIABLE
from ..fusion.database.tuned_configs import tuned_configs
from ..fusion.database.tuning_records import TuningRecords
from ..fusion.profile import Profile, profiling
from ..threads import choose_threads
from ..words import counted
from .alternatives import AlternativeBench
from .budget import Budget


@contextmanager
def profiled(config: FusionConfig, spec: TargetSpec) -> Iterator[Profile | None]:
    """Let planning inside of ``with`` use the records that a user names.

    Yields
    ------
    Profile or None
        With counts of what was asked; ``None`` where there are no records.

    Raises
    ------
    UserError
        If the user allows to measure what cannot be measured here, or names no file for it.
    """
    if config.profile is None:
        records = records_of(config)
        bench = None
    else:
        budget = Budget.parse(config.profile)
        check_measurable(spec)
        records = default_records() if config.db is None else Records.open(config.db)
        if records is None:
            raise UserError(
                "there is no file for the measurements",
                "records, by --db or the option db",
                f"name a file, or set {VARIABLE}",
            )
        choose_threads()
        has_run_kernels()  # planning evaluates constants, and children are forked
        bench = AlternativeBench(spec, budget, tuned_configs(config.db))
    if records is not None:
        _tell_of_others(records, spec)
    profile = None if records is None else Profile(records, bench)
    with profiling(profile):
        yield profile


def _tell_of_others(records: Records, spec: TargetSpec) -> None:
    """Record a decision where what the records have does not count here, and why."""
    answers = Comparisons(records).everything()
    devices = [key.device for _, key, _ in TuningRecords(records).tasks()]
    devices += [answer.question.device for answer in answers]
    kinds = {tuple(json.loads(device)[:2]) for device in devices}
    here = {(one.kind, one.arch) for one in spec.devices}
    if kinds and kinds.isdisjoint(here):
        theirs = ", ".join(f"{kind} {arch}" for kind, arch in sorted(kinds))
        sentence = (
            f"All {len(devices)} records of it are for {theirs}, not for {spec.text}: unused."
        )
        record(Decision(records.path.name, "", "fallback", "records_of_another_device", sentence))
        return
    ours = {device_text(one) for one in spec.devices}
    found: Counter[str] = Counter()
    for question in (answer.question for answer in answers):
        if tuple(json.loads(question.device)[:2]) in here:
            found.update(_differences(question, ours)[:1])
    if found:
        which = ", ".join(f"{count} {reason}" for reason, count in sorted(found.items()))
        sentence = (
            f"{found.total()} of its {len(answers)} comparisons do not count here ({which}): "
            "measure them anew by --profile, or remove those of other versions by tune --prune."
        )
        record(Decision(records.path.name, "", "fallback", "comparisons_unused", sentence))


def _differences(question: Question, devices: set[str]) -> list[str]:
    """Say why a comparison of this architecture does not count on any of the devices."""
    found = []
    if question.device not in devices:
        _, _, name, cores, *flags = json.loads(question.device)
        own = [json.loads(device) for device in sorted(devices)]
        if name not in (one[2] for one in own):
            found.append(f"of {name}")
        elif cores not in (one[3] for one in own):
            found.append(f"with {counted(cores, 'core')}")
        else:
            found.append(f"with {' and '.join(flags) or 'exact'} arithmetic")
    theirs = json.loads(question.versions)
    found += [f"by {p} {theirs.get(p)}" for p, v in versions().items() if theirs.get(p) != v]
    return found


def records_of(config: FusionConfig) -> Records | None:
    """Open the records that a user names, which must exist; ``None`` where none are named."""
    return default_records() if config.db is None else Records.open(config.db, must_exist=True)


def check_measurable(spec: TargetSpec) -> None:
    """Stop where kernels for a target cannot run in this process.

    Raises
    ------
    UserError
        Unless the target is this machine's CPU.
    """
    if spec.kind != "llvm" or spec.triple is not None:
        raise UserError(
            f"target {spec.text!r} cannot be measured here (profile)",
            "cpu, this machine",
            "measure on a machine that is the target, and import its records",
        )
