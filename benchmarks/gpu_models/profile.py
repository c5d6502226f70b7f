"""What runs on the GPU in one call, and what the host asks of the driver: by CUPTI."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

CALLS = 4


def kernels(call: Callable[[], Any]) -> dict[str, Any]:
    """Profile a call.

    Returns
    -------
    dict
        ``kernels``: name, start and duration in microseconds of each, in order, of the last call;
        ``busy_us``: of it, the time in which at least one ran; ``span_us``: from the first start to
        the last end; ``driver``: by name, how often a call asks the runtime and the driver, and
        the microseconds of the host in there.
    """
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
        for _ in range(CALLS):
            call()
            torch.cuda.synchronize()
    events = list(found.events())
    ran = sorted((e for e in events if _on_device(e)), key=lambda e: e.time_range.start)
    count = len(ran) // CALLS
    last = ran[len(ran) - count :]
    if not last:
        return {"kernels": [], "busy_us": 0.0, "span_us": 0.0, "driver": {}}
    first = last[0].time_range.start
    spans = [(e.time_range.start - first, e.time_range.end - first) for e in last]
    calls = [e for e in events if not _on_device(e) and e.name.startswith("cu")]
    asked, spent = Counter(e.name for e in calls), Counter[str]()
    for e in calls:
        spent[e.name] += e.time_range.end - e.time_range.start
    return {
        "kernels": [
            [e.name, round(start, 2), round(end - start, 2)]
            for e, (start, end) in zip(last, spans, strict=True)
        ],
        "busy_us": round(_covered(spans), 2),
        "span_us": round(max(end for _, end in spans), 2),
        "driver": {
            name: [number / CALLS, round(spent[name] / CALLS, 1)]
            for name, number in sorted(asked.items())
        },
    }


def _on_device(event: Any) -> bool:
    return event.device_type == torch.autograd.DeviceType.CUDA


def _covered(spans: list[tuple[float, float]]) -> float:
    """Add up the time that at least one of several spans covers; they are in order of starts."""
    total, end = 0.0, float("-inf")
    for start, stop in spans:
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return total
