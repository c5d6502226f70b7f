"""What the page of a profile shows, as one object of plain values; imports no compiler.

An artifact has kernels in the order of their calls and what each reads, and no operators: ``explain
--html --times`` shows a profile's times in the graph of its model.
"""

import json
import re
from pathlib import Path
from typing import Any

from ...deploy.runtime.profile.result import KernelTime, Profile
from ...errors import UserError


def profile_content(profile: Profile) -> dict[str, Any]:
    """Collect what the page of a profile shows.

    Returns
    -------
    dict
        As :func:`tvm_fusion.report.page.explanation.explanation_content` says, without operators
        and edges.
    """
    at = "".join(f", {name}={extent}" for name, extent in profile.extents.items())
    return {
        "model": profile.source,
        "target": f"{profile.target}{at}",
        "device": profile.device,
        "counts": {"kernels": sum(len(row.kernels) for row in profile.rows)},
        "stock": None,
        "assumed_dim": None,
        "machine": machine_content(profile),
        "call": call_content(profile),
        "imported": {"nodes": [], "edges": []},
        "operators": [],
        "edges": [],
        "reads": [[read, i] for i, row in enumerate(profile.rows) for read in row.reads],
        "groups": [_group(row, profile.function) for row in profile.rows],
        "rewriting": None,
        "notes": list(profile.notes),
    }


def call_content(profile: Profile) -> dict[str, float | int | None]:
    """Tell what a whole call takes, and what of it lies outside of kernels and between them."""
    return {
        "us": profile.end_to_end_us,
        "host_us": profile.host_us,
        "gaps_us": profile.gaps_us,
        "threads": profile.threads,
    }


def machine_content(profile: Profile) -> dict[str, Any] | None:
    """Tell what the machine reaches; None where it was not measured."""
    rates = profile.rates
    if not rates.bandwidth or not rates.peak_flops:
        return None
    source = rates.peak_from
    return {"bandwidth": rates.bandwidth, "peaks": dict(rates.peak_flops), "peaks_from": source}


# Views that the layout stage puts around a group, such as from_NCHW16c1: no operator of the model.
_LAYOUT = re.compile(r"(from|to)_[A-Z]+\d+[a-z]\d*")


def _group(row: KernelTime, function: str) -> dict[str, Any]:
    titles = [title for title in row.operators if not _LAYOUT.fullmatch(title)]
    titles = titles or list(row.operators or row.kernels)
    shares = {"bandwidth": row.bandwidth_share, "peak rate": row.peak_share}
    return {
        "title": " + ".join(titles),
        "titles": titles,
        "names": list(row.names),
        "function": function,
        "type": row.type,
        "template": row.template,
        "kernels": list(row.kernels),
        "operators": [],
        "measured_us": row.us,
        "us": row.predicted_us,
        "source": row.source,
        "bytes": row.bytes,
        "flops": row.flops,
        "config": dict(row.config),
        "shares": {name: share for name, share in shares.items() if share is not None},
    }


def read_profile(path: str) -> Profile:
    """Read what ``tvm-fusion profile --json`` printed.

    Raises
    ------
    UserError
        If the file cannot be read, or holds anything else.
    """
    wanted = "what `tvm-fusion profile ARTIFACT --json` printed"
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {path!r} ({error.strerror})", wanted) from error
    except ValueError as error:
        raise UserError(f"{path!r} is no JSON", wanted) from error
    known = Profile.__dataclass_fields__
    try:
        return Profile.from_json({key: data[key] for key in data if key in known})
    except (AttributeError, KeyError, TypeError) as error:
        raise UserError(f"{path!r} is no profile", wanted) from error
