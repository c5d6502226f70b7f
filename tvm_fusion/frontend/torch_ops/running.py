"""Convert cumulative extremes and sums of exponentials: a loop along the axis for each line."""

from __future__ import annotations

import math
from typing import Any

from tvm import relax, tirx

from ...core.tir.task_kernel import Local, loop, store, when
from ..tensor_types import dtype_of, is_float
from .call import Call, static
from .kernel import emit_kernel
from .registry import register

op = relax.op


def lines(call: Call, x: Any, shape: list[int], axis: int) -> tuple[Any, list[int]]:
    """View a tensor as ``[outer, extent, inner]``."""
    sizes = [math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])]
    return call.emit(op.reshape(x, sizes)), sizes


@register("cummax", "cummin")
def running_extreme(call: Call) -> Any:
    """Find the largest or smallest value so far, and where: of equal values the last."""
    is_max = call.node.target.__name__.startswith("cummax")
    fake, x = call.meta("self"), call.tensor("self")
    if not fake.shape or fake.numel() == 0:
        call.raw("dim")
        return x, op.zeros(call.shape(call.out[1]), "int64")
    shape, dtype = static(fake.shape), dtype_of(x)
    key = call.cast(x, "int8") if dtype == "bool" else x
    kind = dtype_of(key)
    flat, sizes = lines(call, key, shape, call["dim"] % len(shape))

    def body(i: Any, j: Any, x: Any, values: Any, places: Any) -> None:
        best, place = Local(kind, x[i, 0, j]), Local("int64", 0)
        with loop(0, sizes[1]) as k:
            current = Local(kind, x[i, k, j])
            beats = current.value >= best.value if is_max else current.value <= best.value
            if is_float(kind):  # Once there is no number, there is none.
                beats = tirx.any(beats, tirx.isnan(current.value))
            with when(beats):
                best.set(current.value)
                place.set(k)
            store(values, [i, k, j], best.value)
            store(places, [i, k, j], place.value)

    tasks, outputs = [sizes[0], sizes[2]], [(sizes, kind), (sizes, "int64")]
    value, place = emit_kernel(call, "running_extreme", tasks, [flat], outputs, body)
    value, place = (call.emit(op.reshape(y, shape)) for y in (value, place))
    return call.cast(value, dtype), place


@register("logcumsumexp")
def running_log_sum(call: Call) -> Any:
    """Take the logarithm of the sum of exponentials so far, less the largest of them."""
    fake = call.meta("self")
    if not fake.shape or fake.numel() == 0:
        call.raw("dim")
        return call.tensor("self")
    shape, x = static(fake.shape), call.wide(call.tensor("self"))
    kind = dtype_of(x)
    flat, sizes = lines(call, x, shape, call["dim"] % len(shape))

    def body(i: Any, j: Any, x: Any, y: Any) -> None:
        lowest = tirx.const(-math.inf, kind)
        best, total = Local(kind, lowest), Local(kind, 0.0)
        with loop(0, sizes[1]) as k:
            current = Local(kind, x[i, k, j])
            with when(current.value > best.value):
                total.set(total.value * tirx.exp(best.value - current.value))
                best.set(current.value)
            with when(tirx.any(current.value > lowest, tirx.isnan(current.value))):
                # Of two infinities the difference is no number.
                same = current.value == best.value
                difference = tirx.Select(same, tirx.const(0, kind), current.value - best.value)
                total.set(total.value + tirx.exp(difference))
            store(y, [i, k, j], best.value + tirx.log(total.value))

    tasks = [sizes[0], sizes[2]]
    (result,) = emit_kernel(call, "running_log_sum", tasks, [flat], [(sizes, kind)], body)
    return call.cast(call.emit(op.reshape(result, shape)), call.dtype)
