"""A profile as a trace: Chrome's JSON format, which Perfetto and chrome://tracing open."""

from __future__ import annotations

from typing import Any

from .result import Profile

_PROCESS, _CALL, _KERNELS = 1, 1, 2


def trace(profile: Profile) -> dict[str, Any]:
    """Write the run that is the median as complete events, in microseconds.

    Returns
    -------
    dict
        ``traceEvents``: the whole call on one track, its kernels on another; as JSON it is a file
        that ui.perfetto.dev opens.
    """
    ends = [row.start_us + row.spent_us for row in profile.rows]
    whole = max([profile.end_to_end_us, *ends])
    events: list[dict[str, Any]] = [
        _named("process_name", f"{profile.source} on {profile.device}", _CALL),
        _named("thread_name", "call", _CALL),
        _named("thread_name", f"kernels ({profile.clock})", _KERNELS),
        _event(profile.function, 0.0, whole, _CALL, {"extents": dict(profile.extents)}),
    ]
    for row in profile.rows:
        facts = {
            "kernels": list(row.kernels),
            "names": list(row.names),
            "template": row.template,
            "configuration": dict(row.config),
            "predicted us": row.predicted_us,
            "price": row.source,
            "bytes": row.bytes,
            "flops": row.flops,
        }
        events.append(_event(row.title, row.start_us, row.spent_us, _KERNELS, facts))
    return {"traceEvents": events, "displayTimeUnit": "ns"}


def _named(kind: str, name: str, thread: int) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": _PROCESS, "tid": thread, "args": {"name": name}}


def _event(
    name: str, start: float, duration: float, thread: int, facts: dict[str, Any]
) -> dict[str, Any]:
    return {
        "ph": "X", "name": name, "ts": start, "dur": duration,
        "pid": _PROCESS, "tid": thread, "args": facts,
    }  # fmt: skip
