"""Convert cumulative extremes and sums of exponentials: a loop along the axis for each line."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tvm import relax, tirx

from ...core.tir.task_kernel import Local, loop, store, when
from ..tensor_types import dtype_of, is_float
from .call import Call, is_empty
from .kernel import emit_kernel
from .registry import register

op = relax.op


class Lines:
    """The lines of a tensor along an axis: a task each.

    Parameters
    ----------
    shape : list of int or tirx.PrimExpr
        The tensor's.
    axis : int
        From either end.
    """

    def __init__(self, shape: list[Any], axis: int):
        self.axis = axis % len(shape)
        self.tasks = [e for a, e in enumerate(shape) if a != self.axis]

    def extent(self, buffer: Any) -> Any:
        """Return the length of a line of a kernel's buffer."""
        return buffer.shape[self.axis]

    def at(self, line: Sequence[Any], place: Any) -> list[Any]:
        """Return the indices of an element of a line."""
        return [*line[: self.axis], place, *line[self.axis :]]


@register("cummax", "cummin")
def running_extreme(call: Call) -> Any:
    """Find the largest or smallest value so far, and where: of equal values the last."""
    is_max = call.node.target.__name__.startswith("cummax")
    fake, x = call.meta("self"), call.tensor("self")
    if not fake.shape or is_empty(fake):
        call.raw("dim")
        return x, op.zeros(call.shape(call.out[1]), "int64")
    shape, dtype = call.shape(fake), dtype_of(x)
    key = call.cast(x, "int8") if dtype == "bool" else x
    kind, lines = dtype_of(key), Lines(shape, call["dim"])

    def body(*given: Any) -> None:
        *line, x, values, places = given
        best, place = Local(kind, x[tuple(lines.at(line, 0))]), Local("int64", 0)
        with loop(0, lines.extent(x)) as k:
            at = lines.at(line, k)
            current = Local(kind, x[tuple(at)])
            beats = current.value >= best.value if is_max else current.value <= best.value
            if is_float(kind):  # Once there is no number, there is none.
                beats = tirx.any(beats, tirx.isnan(current.value))
            with when(beats):
                best.set(current.value)
                place.set(k)
            store(values, at, best.value)
            store(places, at, place.value)

    outputs = [(shape, kind), (shape, "int64")]
    value, place = emit_kernel(call, "running_extreme", lines.tasks, [key], outputs, body)
    return call.cast(value, dtype), place


@register("logcumsumexp")
def running_log_sum(call: Call) -> Any:
    """Take the logarithm of the sum of exponentials so far, less the largest of them."""
    fake = call.meta("self")
    if not fake.shape or is_empty(fake):
        call.raw("dim")
        return call.tensor("self")
    shape, x = call.shape(fake), call.wide(call.tensor("self"))
    kind, lines = dtype_of(x), Lines(shape, call["dim"])

    def body(*given: Any) -> None:
        *line, x, y = given
        lowest = tirx.const(-math.inf, kind)
        best, total = Local(kind, lowest), Local(kind, 0.0)
        with loop(0, lines.extent(x)) as k:
            at = lines.at(line, k)
            current = Local(kind, x[tuple(at)])
            with when(current.value > best.value):
                total.set(total.value * tirx.exp(best.value - current.value))
                best.set(current.value)
            with when(tirx.any(current.value > lowest, tirx.isnan(current.value))):
                # Of two infinities the difference is no number.
                same = current.value == best.value
                difference = tirx.Select(same, tirx.const(0, kind), current.value - best.value)
                total.set(total.value + tirx.exp(difference))
            store(y, at, best.value + tirx.log(total.value))

    (result,) = emit_kernel(call, "running_log_sum", lines.tasks, [x], [(shape, kind)], body)
    return call.cast(result, call.dtype)
