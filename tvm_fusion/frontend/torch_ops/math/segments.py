"""Convert reductions over segments of an axis: embedding bags, segment_reduce."""

import math
from typing import Any

from tvm import relax, tirx

from ....core.tir.loops import index
from ....core.tir.task_kernel import Local, loop, store, when
from ...registry import Unsupported
from ...tensor_types import dtype_of
from ..call import Call, is_zero, name_of, static
from ..kernel import emit_kernel
from ..registry import register

op = relax.op
_SUM, _MEAN, _MAX = 0, 1, 2


def _int(x: Any) -> Any:
    return tirx.Cast("int64", x)


@register("_embedding_bag", "_embedding_bag_forward_only")
def embedding_bag(call: Call) -> Any:
    """Add, average or take the largest of the rows of each bag, a task for each element."""
    for name in ("scale_grad_by_freq", "sparse"):
        call.raw(name)
    if any(call.is_used(i) for i in (1, 2, 3)):
        raise Unsupported("with more than its first result used", "use its first result only")
    mode, skipped, includes_last = call["mode"], call["padding_idx"], call["include_last_offset"]
    rows, width = static(call.meta("weight").shape)
    (bags, _), dtype = call.shape(call.out[0]), name_of(call.out[0].dtype)
    if any(is_zero(e) for e in (bags, width, *call.meta("indices").shape)):
        return call.emit(op.zeros([bags, width], dtype)), None, None, None
    weight = call.tensor("weight")
    wide = dtype_of(call.wide(weight))
    inputs = [weight, call.tensor("indices"), call.tensor("offsets")]
    weighted = call["per_sample_weights"] is not None
    if weighted:
        inputs.append(call.tensor("per_sample_weights"))
    skipped = skipped + rows if skipped < -1 else skipped

    def body(b: Any, j: Any, weight: Any, indices: Any, offsets: Any, *rest: Any) -> None:
        *factors, y = rest
        total, counted = Local(wide, 0.0), Local("int64", 0)
        end = Local("int64", indices.shape[0])
        if includes_last:
            end.set(_int(offsets[b + index(1)]))
        else:
            last = y.shape[0] - 1
            with when(b < last):
                # A bag is the last one's neighbour, and its end is read where there is one.
                end.set(_int(offsets[tirx.min(b + index(1), last)]))
        with loop(_int(offsets[b]), end.value) as i:
            row = Local("int64", _int(indices[i]))
            with when(row.value != index(skipped)):
                value = Local(wide, tirx.Cast(wide, weight[row.value, j]))
                if factors:
                    value.set(value.value * tirx.Cast(wide, factors[0][i]))
                if mode == _MAX:
                    beats = tirx.any(counted.value == index(0), value.value > total.value)
                    with when(beats):
                        total.set(value.value)
                else:
                    total.set(total.value + value.value)
                counted.set(counted.value + index(1))
        if mode == _MEAN:
            with when(counted.value > index(0)):
                total.set(total.value / tirx.Cast(wide, counted.value))
        store(y, [b, j], tirx.Cast(dtype, total.value))

    tasks = [bags, width]
    (result,) = emit_kernel(call, "embedding_bag", tasks, inputs, [(tasks, dtype)], body)
    return result, None, None, None


_START = {"max": -math.inf, "min": math.inf, "sum": 0.0, "mean": 0.0, "prod": 1.0}


@register("segment_reduce")
def segment_reduce(call: Call) -> Any:
    """Reduce each segment of an axis, a task for each element of the result."""
    call.raw("unsafe")
    if call["indices"] is not None:
        raise Unsupported("with indices", "give lengths or offsets")
    how, axis, initial = call["reduce"], call["axis"], call["initial"]
    shape, dtype = static(call.meta("data").shape), call.dtype
    axis %= len(shape)
    out = static(call.out.shape)
    outer, inner, count = math.prod(shape[:axis]), math.prod(shape[axis + 1 :]), out[axis]
    is_offsets = call["offsets"] is not None
    bounds = call.tensor("offsets" if is_offsets else "lengths")
    call.raw("lengths")
    if math.prod(out) == 0:
        return op.zeros(out, dtype)
    extent = int(bounds.ty.shape[-1])
    data = call.wide(call.tensor("data"))
    if math.prod(shape) == 0:
        raise Unsupported("of no values", "leave the operator out")
    wide = dtype_of(data)
    inputs = [
        call.emit(op.reshape(data, [outer, shape[axis], inner])),
        call.emit(op.reshape(bounds, [outer, extent])),
    ]

    def body(o: Any, s: Any, i: Any, data: Any, bounds: Any, y: Any) -> None:
        start, length = Local("int64", 0), Local("int64", 0)
        if is_offsets:
            start.set(_int(bounds[o, s]))
            length.set(_int(bounds[o, s + index(1)]) - start.value)
        else:
            with loop(0, s) as k:
                start.set(start.value + _int(bounds[o, k]))
            length.set(_int(bounds[o, s]))
        total = Local(wide, float(_START[how] if initial is None else initial))
        with loop(start.value, start.value + length.value) as k:
            value = Local(wide, data[o, k, i])
            if how in ("max", "min"):
                beats = value.value > total.value if how == "max" else value.value < total.value
                with when(tirx.any(beats, tirx.isnan(value.value))):
                    total.set(value.value)
            elif how == "prod":
                total.set(total.value * value.value)
            else:
                total.set(total.value + value.value)
        if how == "mean":
            with when(length.value > index(0)):
                total.set(total.value / tirx.Cast(wide, length.value))
            if initial is None:
                with when(length.value == index(0)):
                    total.set(math.nan)
        store(y, [o, s, i], total.value)

    tasks = [outer, count, inner]
    (result,) = emit_kernel(call, "segment_reduce", tasks, inputs, [(tasks, wide)], body)
    return call.cast(call.emit(op.reshape(result, out)), dtype)
