"""Convert what compares values along an axis: medians, modes, searches, running extremes."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from tvm import relax, tirx

from ....core.tir.loops import index
from ....core.tir.task_kernel import Local, loop, repeat_while, store, when
from ...tensor_types import dtype_of, is_float
from ..call import Call, is_empty, is_zero, static
from ..kernel import emit_kernel
from ..registry import register

op = relax.op


class Lines:
    """The lines of a tensor along an axis: a task each.

    Parameters
    ----------
    axis
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


def _reduced_shape(shape: list[Any], axis: int, keeps: bool) -> list[Any]:
    return [1 if a == axis else e for a, e in enumerate(shape) if keeps or a != axis]


@register("mode")
def mode(call: Call) -> Any:
    """Find the most frequent value along an axis, the smallest of several."""
    fake, x = call.meta("self"), call.tensor("self")
    axis, keeps = call["dim"], call["keepdim"]
    if not fake.shape:
        return x, relax.const(0, "int64")
    shape, dtype = call.shape(fake), dtype_of(x)
    key = call.cast(x, "int8") if dtype == "bool" else x
    kind, lines = dtype_of(key), Lines(shape, axis)

    def body(*given: Any) -> None:
        *line, x, values, places = given

        def element(k: Any) -> Any:
            return x[tuple(lines.at(line, k))]

        most, best = Local("int64", 0), Local("int64", 0)
        with loop(0, lines.extent(x)) as k:
            count = Local("int64", 0)
            with loop(0, lines.extent(x)) as other, when(element(other) == element(k)):
                count.set(count.value + index(1))
            is_equal = tirx.all(count.value == most.value, element(k) <= element(best.value))
            with when(tirx.any(count.value > most.value, is_equal)):
                most.set(count.value)
                best.set(k)
        store(values, lines.at(line, 0), element(best.value))
        store(places, lines.at(line, 0), best.value)

    out = _reduced_shape(shape, lines.axis, True)
    outputs = [(out, kind), (out, "int64")]
    value, place = emit_kernel(call, "mode", lines.tasks, [key], outputs, body)
    out = _reduced_shape(shape, lines.axis, keeps)
    value = call.cast(call.emit(op.reshape(value, out)), dtype)
    return value, call.emit(op.reshape(place, out))


@register("searchsorted.Tensor", "searchsorted.Scalar")
def searchsorted(call: Call) -> Any:
    """Search values in sorted sequences, one for each line, or one for all, by bisection."""
    call.raw("out_int32")
    fake = call.meta("sorted_sequence")
    value = call.meta("self")
    right = call["right"] if call["side"] is None else call["side"] == "right"
    dtype = str(torch.result_type(fake, value)).removeprefix("torch.")
    shape = call.shape()
    if is_empty(call.out) or is_zero(fake.shape[-1]):
        for name in ("self", "sorted_sequence", "sorter"):
            call.raw(name)
        return op.zeros(shape, call.dtype)
    tasks = shape or [1]
    inputs = [call.tensor("sorted_sequence", dtype), call.tensor("self", dtype)]
    if not shape:
        inputs[1] = call.emit(op.reshape(inputs[1], tasks))
    if call["sorter"] is not None:
        inputs.append(call.tensor("sorter"))

    def body(*given: Any) -> None:
        at, (sequence, x, *rest) = given[: len(tasks)], given[len(tasks) :]
        *sorter, places = rest
        line = at[:-1] if fake.ndim > 1 else ()
        low, high = Local("int64", 0), Local("int64", index(sequence.shape[-1]))
        with repeat_while(low.value < high.value):
            middle = Local("int64", tirx.floordiv(low.value + high.value, index(2)))
            place = sorter[0][(*line, middle.value)] if sorter else middle.value
            element = sequence[(*line, place)]
            # One choice of both ends: of two conditions TVM makes ``<`` and ``>=``, and with NaN
            # neither holds.
            is_before = x[at] < element if right else element >= x[at]
            low.set(tirx.Select(is_before, low.value, middle.value + index(1)))
            high.set(tirx.Select(is_before, middle.value, high.value))
        store(places, list(at), tirx.Cast(call.dtype, low.value))

    (result,) = emit_kernel(call, "searchsorted", tasks, inputs, [(tasks, call.dtype)], body)
    return op.reshape(result, shape)


def histogram_by_loops(call: Call) -> Any:
    """Count values in bins of equal width, by default from the smallest to the largest."""
    bins, low, high = call["bins"], call["min"], call["max"]
    fake = call.meta("self")
    size, dtype = fake.numel(), call.dtype
    if size == 0:
        return op.zeros([bins], dtype)
    wide = "float64" if dtype in ("float64", "int64", "int32") else "float32"
    x = call.emit(op.reshape(call.tensor("self", wide), [size]))
    if low == high:
        if low == 0:
            low, high = call.emit(op.min(x)), call.emit(op.max(x))
        else:
            low, high = (relax.const(v, wide) for v in (low, high))
        one, is_point = relax.const(1, wide), call.emit(op.equal(low, high))
        low, high = (
            call.emit(op.where(is_point, op.subtract(low, one), low)),
            call.emit(op.where(is_point, op.add(high, one), high)),
        )
    else:
        low, high = relax.const(low, wide), relax.const(high, wide)
    low, high = (call.emit(op.reshape(v, [1])) for v in (low, high))

    def body(b: Any, x: Any, low: Any, high: Any, counts: Any) -> None:
        total = Local(dtype, 0)
        with loop(0, size) as i:
            value = Local(wide, x[i])
            with when(tirx.all(value.value >= low[0], value.value <= high[0])):
                place = (value.value - low[0]) * tirx.const(bins, wide) / (high[0] - low[0])
                number = Local("int64", tirx.Cast("int64", place))
                with when(number.value >= index(bins)):
                    number.set(index(bins - 1))
                with when(number.value == b):
                    total.set(total.value + tirx.const(1, dtype))
        store(counts, [b], total.value)

    return emit_kernel(call, "histc", [bins], [x, low, high], [([bins], dtype)], body)[0]


@register("nonzero_static")
def nonzero_static(call: Call) -> Any:
    """List the places of a fixed number of elements that are not zero, filled up."""
    shape, count = static(call.meta("self").shape), call["size"]
    fill, size = call["fill_value"], math.prod(static(call.meta("self").shape))
    out = [count, len(shape)]
    if 0 in out or size == 0:
        return op.full(out, relax.const(fill, "int64"), "int64")
    mask = call.emit(op.reshape(call.cast(call.tensor("self", "bool"), "int8"), [size]))

    def body(_: Any, mask: Any, places: Any) -> None:
        with loop(0, count) as i:
            for axis in range(len(shape)):
                store(places, [i, index(axis)], fill)
        found = Local("int64", 0)
        with loop(0, size) as i:
            is_it = tirx.all(mask[i] != tirx.const(0, "int8"), found.value < index(count))
            with when(is_it):
                for axis, extent in enumerate(shape):
                    behind = math.prod(shape[axis + 1 :])
                    place = tirx.floormod(tirx.floordiv(i, index(behind)), index(extent))
                    store(places, [found.value, index(axis)], place)
                found.set(found.value + index(1))

    return emit_kernel(call, "nonzero_static", [1], [mask], [(out, "int64")], body)[0]
