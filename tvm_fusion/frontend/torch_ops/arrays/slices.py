"""Convert what cuts, joins and moves along axes: slices, splits, concatenation, padding, roll."""

from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols, statically_known_true
from tvm import relax, te, tirx

from ...registry import Unsupported
from ...shape_values.facts import as_expr
from ..call import Call, is_empty, is_zero, static
from ..registry import register
from .shapes import is_equal

op = relax.op


@register("cat", "concat")
def concat(call: Call) -> Any:
    """Join tensors along an axis; empty ones are left out."""
    fakes = call.meta("tensors")
    rank = len(call.out.shape)
    pairs = zip(call["tensors"], fakes, strict=True)
    axis = call["dim"] % rank
    kept = [x for x, f in pairs if len(f.shape) == rank and not is_zero(f.shape[axis])]
    if not kept:
        return op.zeros(call.shape(), call.dtype)
    kept = [call.cast(x, call.dtype) for x in kept]
    return kept[0] if len(kept) == 1 else op.concat(kept, axis)


@register("stack")
def stack(call: Call) -> Any:
    """Join tensors along a new axis."""
    tensors = [call.cast(x, call.dtype) for x in call["tensors"]]
    return op.stack(tensors, axis=call["dim"] % len(call.out.shape))


@register("split.Tensor", "split_with_sizes", "unsafe_split.Tensor", "split_with_sizes_copy")
def split(call: Call) -> Any:
    """Split along an axis into pieces of the extents that torch gives them."""
    call.raw("split_size" if "split_size" in call else "split_sizes")
    return _pieces(call, call["dim"])


def _pieces(call: Call, axis: int) -> Any:
    x, fakes = call.tensor("self"), call.out
    if len(fakes) == 1:
        return (x,)
    extents = [call.extent(f.shape[axis]) for f in fakes]
    if all(isinstance(e, int) and e > 0 for e in extents):
        ends = [sum(extents[: i + 1]) for i in range(len(extents) - 1)]
        return call.emit(op.split(x, ends, axis))
    begin, pieces = 0, []
    for extent in extents:
        pieces.append(call.emit(op.strided_slice(x, [axis], [begin], [begin + extent])))
        begin = begin + extent
    return tuple(pieces)


@register("unbind.int")
def unbind(call: Call) -> Any:
    """Split an axis into its elements."""
    x, axis, count = call.tensor("self"), call["dim"], len(call.out)
    if count == 1:
        return (call.emit(op.squeeze(x, [axis])),)
    pieces = call.emit(op.split(x, count, axis))
    return tuple(call.emit(op.squeeze(pieces[i], [axis])) for i in range(count))


@register("slice.Tensor")
def slice_(call: Call) -> Any:
    """Take a range of an axis, bounds counted from either end and cut to the axis."""
    x, axis = call.tensor("self"), call["dim"] % len(call.out.shape)
    extent, step = call.meta("self").shape[axis], call["step"]
    begin, end = call["start"], call["end"]
    begin = 0 if begin is None else begin
    if is_equal(call.extent(call.out.shape[axis]), call.extent(extent)) and step == 1:
        return x
    if isinstance(extent, int) and isinstance(begin, int):
        begin = max(0, begin + extent) if begin < 0 else min(begin, extent)
        count = call.out.shape[axis]
        if isinstance(count, int):  # Where torch knows the result's extent, the end follows.
            if count == 0:
                return op.zeros(call.shape(), call.dtype)
            return op.strided_slice(x, [axis], [begin], [begin + (count - 1) * step + 1], [step])
    whole = call.extent(extent)
    start = 0 if call.meta("start") is None else call.meta("start")
    if statically_known_true(start < 0):
        begin = whole + begin
        is_inside = statically_known_true(start + extent >= 0)
    else:
        is_inside = statically_known_true(start >= 0)
    if step == 1 and is_inside and not _depends_on_values(call.out.shape[axis]):
        # As many as torch counts: TVM's own count of x[:1] is min(1, n), which no sum simplifies.
        count = call.extent(call.out.shape[axis])
        if _depends_on_values(start):  # and may be past what was asserted
            begin = tirx.min(begin, whole - count)
        return op.strided_slice(x, [axis], [begin], [begin + count], assume_inbound=True)
    if end is None or (isinstance(end, int) and end >= 2**62):
        end = whole
    elif isinstance(end, int) and end < 0:
        end = whole + end
    stop = call.meta("end")
    if step == 1 and is_inside and (end is whole or statically_known_true(stop >= 0)):
        # In range whatever the values are; TVM's own count is a choice, which is no extent to it.
        begin, end = (as_expr(bound) for bound in (begin, end))
        begin = tirx.max(tirx.min(begin, whole), 0)
        end = tirx.max(tirx.min(end, whole), begin)
        return op.strided_slice(x, [axis], [begin], [end], assume_inbound=True)
    return op.strided_slice(x, [axis], [begin], [end], [step])


def _depends_on_values(extent: Any) -> bool:
    """Say whether an extent is known only when the model runs."""
    return isinstance(extent, torch.SymInt) and free_unbacked_symbols(extent) != set()


@register("slice_scatter", "select_scatter")
def slice_scatter(call: Call) -> Any:
    """Write a range of an axis, or one place of it."""
    fake, axis, dtype = call.meta("self"), call["dim"], call.dtype
    axis %= len(fake.shape)
    x, source = call.tensor("self"), call.tensor("src", dtype)
    extent = fake.shape[axis]
    bounds = [call.get(name) for name in ("index", "start", "end")]
    if not all(isinstance(e, int | None) for e in (extent, *bounds)):
        return _scattered(call, axis, x, source)
    if "index" in call:
        begin = call["index"] % extent
        end, step = begin + 1, 1
        source = call.emit(op.expand_dims(source, axis))
    else:
        begin, end, _ = slice(call["start"], call["end"]).indices(extent)
        step = call["step"]
    if not isinstance(step, int):
        raise Unsupported("with a computed step", "give the step as a number")
    places = range(begin, end, step)
    if not len(places):
        return x
    if len(places) == extent:
        return op.broadcast_to(source, call.shape())
    pieces = []
    if step == 1:
        if begin > 0:
            pieces.append(op.strided_slice(x, [axis], [0], [begin]))
        shape = call.shape()
        shape[axis] = len(places)
        pieces.append(op.broadcast_to(source, shape))
        if end < extent:
            pieces.append(op.strided_slice(x, [axis], [end], [extent]))
        return op.concat([call.emit(piece) for piece in pieces], axis)
    which = [(p - begin) // step if p in places else -1 for p in range(extent)]
    shape = call.shape()
    shape[axis] = len(places)
    source = call.emit(op.broadcast_to(source, shape))
    index = relax.const([max(0, w) for w in which], "int64")
    moved = call.emit(op.take(source, index, axis))
    mask = relax.const([w >= 0 for w in which], "bool")
    mask = call.emit(op.reshape(mask, [extent, *[1] * (len(shape) - axis - 1)]))
    return op.where(mask, moved, x)


def _scattered(call: Call, axis: int, x: Any, source: Any) -> Any:
    """Write a range whose ends, or whose axis, are symbolic: a choice for each place."""
    shape = call.shape()
    begin, step, count = call.get("start"), call.get("step", 1), 1
    begin = 0 if begin is None else begin
    if "index" in call:
        begin = call["index"]
        source = call.emit(op.expand_dims(source, axis))
    else:
        call.raw("end")
        count = call.extent(call.meta("src").shape[axis])
    if not isinstance(step, int):
        raise Unsupported("with a computed step", "give the step as a number")
    begin = shape[axis] + begin if isinstance(begin, int) and begin < 0 else begin
    along = [shape[axis], *[1] * (len(shape) - axis - 1)]
    place = op.subtract(op.arange(0, shape[axis], 1, "int64"), call.as_tensor(begin, "int64"))
    place, stride = call.emit(place), relax.const(step, "int64")
    number = call.emit(op.floor_divide(place, stride))
    many, zero = call.as_tensor(count, "int64"), relax.const(0, "int64")
    inside = op.logical_and(op.greater_equal(place, zero), op.less(number, many))
    inside = op.logical_and(inside, op.equal(op.multiply(number, stride), place))
    mask = call.emit(op.reshape(call.emit(inside), along))
    moved = call.emit(op.take(source, number, axis))  # from the nearest, where it is not inside
    return op.where(mask, moved, x)


@register("flip")
def flip(call: Call) -> Any:
    """Reverse axes."""
    x = call.tensor("self")
    for axis in call["dims"]:
        x = call.emit(op.flip(x, axis)) if call.out.shape else x
    return x


@register("roll")
def roll(call: Call) -> Any:
    """Rotate along axes, or along all of them laid out as one."""
    x, shifts, dims = call.tensor("self"), call["shifts"], call["dims"]
    shifts = [shifts] if isinstance(shifts, int) else shifts
    if is_empty(call.out) or not call.out.shape:
        return x
    shape = call.shape()
    if not dims:
        x, shape, dims = call.emit(op.reshape(x, [-1])), [call.out.numel()], [0]
    for shift, axis in zip(shifts, dims, strict=True):
        extent = shape[axis]
        if not isinstance(extent, int) or not isinstance(shift, int):
            x = _rolled_by_index(call, x, shift, axis, extent)
            continue
        cut = -shift % extent
        if cut:
            head = call.emit(op.strided_slice(x, [axis], [0], [cut]))
            tail = call.emit(op.strided_slice(x, [axis], [cut], [extent]))
            x = call.emit(op.concat([tail, head], axis))
    return op.reshape(x, call.shape())


def _rolled_by_index(call: Call, x: Any, shift: Any, axis: int, extent: Any) -> Any:
    """Rotate along an axis where the extent, or how far, is known at run time."""
    number, far = (call.emit(op.shape_to_tensor(relax.ShapeExpr([n]))) for n in (extent, shift))
    place = call.emit(op.arange(extent, dtype="int64"))
    moved = call.emit(op.floor_mod(call.emit(op.subtract(place, far)), number))
    return call.emit(op.take(x, moved, axis))


@register("repeat", "tile")
def repeat(call: Call) -> Any:
    """Repeat a tensor along its axes."""
    x, repeats = call.tensor("self"), call["repeats"]
    if all(isinstance(r, int) for r in repeats):
        return op.tile(x, repeats)
    shape = [*call.importer.shape_of(x)]
    shape = [*[1] * (len(repeats) - len(shape)), *shape]
    expanded = call.emit(op.reshape(x, [e for extent in shape for e in (1, extent)]))
    pairs = zip(repeats, shape, strict=True)
    return op.reshape(
        call.emit(op.broadcast_to(expanded, [e for p in pairs for e in p])), call.shape()
    )


@register("constant_pad_nd")
def pad(call: Call) -> Any:
    """Pad with a constant; negative widths cut."""
    x, rank, value = call.tensor("self"), len(call.out.shape), call["value"]
    widths = [call.extent(width) for width in call.meta("pad")]
    pairs = [(0, 0)] * (rank - len(widths) // 2)
    pairs += [(widths[i], widths[i + 1]) for i in range(len(widths) - 2, -1, -2)]
    if not all(isinstance(width, int) for width in widths):
        return _pad_by_extents(call, x, [before for before, _ in pairs])
    for axis, (before, after) in enumerate(pairs):
        if min(before, after) < 0:
            (extent,) = static([call.meta("self").shape[axis]])
            begin, end = max(0, -before), extent - max(0, -after)
            x = call.emit(op.strided_slice(x, [axis], [begin], [end]))
    flat = [max(0, w) for pair in pairs for w in pair]
    if not any(flat):
        return x
    dtype = call.dtype
    if dtype == "bool":
        padded = op.nn.pad(op.astype(x, "int8"), flat, "constant", float(bool(value)))
        return call.cast(call.emit(padded), "bool")
    if "int" in dtype and value != int(value):
        value = int(value)
    return op.nn.pad(x, flat, "constant", value)


def _pad_by_extents(call: Call, x: Any, begins: list[Any]) -> Any:
    """Pad, or cut, by widths that depend on extents: of either sign, as is known when it runs."""
    shape, value, dtype = call.shape(), call["value"], call.dtype
    kind = "int8" if dtype == "bool" else dtype
    fill = tirx.const(float(value) if "float" in kind else int(value), kind)

    def padded(given: te.Tensor, begins: list[Any], shape: list[Any]) -> te.Tensor:
        def element(*i: Any) -> Any:
            at = [index - begin for index, begin in zip(i, begins, strict=True)]
            inside = [tirx.all(p >= 0, p < e) for p, e in zip(at, given.shape, strict=True)]
            return tirx.if_then_else(tirx.all(*inside), given(*at), fill)

        return te.compute(shape, element, name="padded")

    # Kernels know no variables but those of their arguments.
    sizes = [relax.ShapeExpr([as_expr(n) for n in each]) for each in (begins, shape)]
    builder = call.importer.block_builder
    found = builder.emit_te(padded, call.cast(x, kind), *sizes, primfunc_name_hint="pad")
    return call.cast(found, dtype)
