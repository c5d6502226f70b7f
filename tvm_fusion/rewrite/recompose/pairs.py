"""Pairs of elements along an axis: split into halves, concatenated or interleaved."""

from dataclasses import dataclass
from typing import Any, Literal

from tvm import relax
from tvm.ir import GenericConst

from ...frontend.tensor_types import dtype_of
from .matching.extents import extent, known_shape, same_extent, same_shape
from .matching.view import View, op_name

#: Partners are half of the axis apart, or neighbours.
Order = Literal["half-split", "interleaved"]


@dataclass(frozen=True)
class Half:
    """The first or the second element of each pair along a tensor's last axis.

    Attributes
    ----------
    source : ir.Expr
        The tensor.
    order : str
        Which elements are pairs.
    which
        0 or 1.
    sign
        1, or -1 for its negative.
    """

    source: Any
    order: Order
    which: int
    sign: int = 1


def half_of(view: View, expr: Any) -> Half | None:
    """Read an expression as one element of each pair."""
    call = view.call(expr, "negative")
    if call is not None:
        inner = half_of(view, call.args[0])
        return None if inner is None else Half(inner.source, inner.order, inner.which, -inner.sign)
    factor = _minus(view, expr)
    if factor is not None:
        inner = half_of(view, factor)
        return None if inner is None else Half(inner.source, inner.order, inner.which, -inner.sign)
    piece = expr
    while view.is_moved(piece) and view.call(piece, "broadcast_to") is None:
        piece = view.value(piece).args[0]
    found = _piece(view, piece)
    if found is None:
        return None
    source, axis, order, which = found
    shape = known_shape(source) or []
    own = known_shape(expr) or []
    if axis == len(shape) - 1 and order != "indexed":
        is_same = len(own) == len(shape) and all(map(same_extent, own[:-1], shape[:-1]))
        return Half(source, order, which) if is_same and piece is expr else None
    before = view.call(source, "reshape")
    if order != "indexed" or before is None or len(shape) < 2:
        return None
    whole = known_shape(before.args[0]) or []
    kept = [e for i, e in enumerate(shape) if i != axis]
    if axis < len(shape) - 2 or not same_shape(kept, own):
        return None
    if len(whole) != len(own) or not all(map(same_extent, whole[:-1], own[:-1])):
        return None
    layout: Order = "interleaved" if axis == len(shape) - 1 else "half-split"
    return Half(before.args[0], layout, which)


def _minus(view: View, expr: Any) -> Any:
    """Find ``x`` in ``-1 * x``."""
    call = view.call(expr, "multiply")
    if call is None:
        return None
    for one, other in (call.args, call.args[::-1]):
        if view.number(other) == -1:
            return one
    return None


def _piece(view: View, expr: Any) -> tuple[Any, int, Any, int] | None:
    """Read a slice, a part of a split or an index: the tensor, the axis, the order, which one."""
    value = view.value(expr)
    if isinstance(value, relax.TupleGetItem):
        split = view.value(value.tuple_value)
        if op_name(split) != "split" or len(split.ty.fields) != 2:
            return None
        source, shape = split.args[0], known_shape(split.args[0]) or []
        axis = int(split.attrs.axis) % max(1, len(shape))
        first, second = (known_shape(relax.Var("part", t)) or [] for t in split.ty.fields)
        if not same_shape(first, second):
            return None
        is_index = bool(shape) and extent(shape[axis]) == 2
        return source, axis, "indexed" if is_index else "half-split", int(value.index)
    name = op_name(value)
    if name == "take":
        return _taken(view, value)
    if name != "strided_slice" or len(value.args) != 5:
        return None
    source, extents = value.args[0], known_shape(value.args[0])
    lists = [_numbers(view, arg) for arg in value.args[1:]]
    if extents is None or any(n is None or len(n) != 1 for n in lists):
        return None
    axis, begin, end, step = (n[0] for n in lists if n)
    axis %= len(extents)
    size = extent(extents[axis])
    if size is None or size % 2 or begin < 0:
        return None
    end = min(end, size) if end >= 0 else size + end
    if size == 2 and step == 1 and end - begin == 1:
        return source, axis, "indexed", begin
    if step == 2 and begin in (0, 1) and end >= size - 1 + begin:
        return source, axis, "interleaved", begin
    if step == 1 and end - begin == size // 2 and begin in (0, size // 2):
        return source, axis, "half-split", int(begin > 0)
    return None


def _taken(view: View, call: relax.Call) -> tuple[Any, int, Any, int] | None:
    shape, index = known_shape(call.args[0]), view.number(call.args[1])
    if shape is None or call.attrs.axis is None or index is None:
        return None
    axis = int(call.attrs.axis) % len(shape)
    if (
        extent(shape[axis]) != 2
        or index not in (-2, -1, 0, 1)
        or known_shape(call.args[1])
        not in (
            [],
            None,
        )
    ):
        return None
    return call.args[0], axis, "indexed", int(index) % 2


def _numbers(view: View, arg: Any) -> list[int] | None:
    arg = view.value(arg)
    if isinstance(arg, relax.Tuple):
        numbers = [view.number(f) for f in arg.fields]
        return None if None in numbers else [int(n) for n in numbers if n is not None]
    if isinstance(arg, GenericConst) and dtype_of(arg).startswith("int"):
        return [int(n) for n in arg.value.numpy().reshape(-1)]
    return None


def joined(view: View, expr: Any) -> tuple[Order, list[Any]] | None:
    """Read a tensor as both elements of its pairs, put together along its last axis."""
    shape = known_shape(expr)
    if not shape:
        return None
    call = view.call(expr)
    if call is None:
        return None
    name = op_name(call)
    if name == "concat":
        fields = _fields(view, call)
        if len(fields) == 2 and int(call.attrs.axis or 0) % len(shape) == len(shape) - 1:
            shapes = [known_shape(f) or [] for f in fields]
            return ("half-split", fields) if same_shape(*shapes) else None
        return None
    if name not in ("reshape", "flatten"):
        return None
    inner = view.call(call.args[0], "stack", "concat")
    before = known_shape(call.args[0]) or []
    if inner is None or len(before) != len(shape) + 1:
        return None
    if not all(map(same_extent, before[:-2], shape[:-1])):
        return None
    fields = _fields(view, inner)
    axis = int(inner.attrs.axis or 0) % len(before)
    if len(fields) != 2 or axis < len(before) - 2 or extent(before[axis]) != 2:
        return None
    if op_name(inner) == "concat":
        fields = [_without(view, f, axis) for f in fields]
    if any(f is None for f in fields):
        return None
    return ("interleaved" if axis == len(before) - 1 else "half-split"), fields


def _without(view: View, expr: Any, axis: int) -> Any:
    """Find what got an axis of extent 1."""
    call = view.call(expr, "expand_dims", "reshape")
    shape = known_shape(expr) or []
    if call is None:
        return None
    own = known_shape(call.args[0]) or []
    return call.args[0] if same_shape(own, [*shape[:axis], *shape[axis + 1 :]]) else None


def _fields(view: View, call: relax.Call) -> list[Any]:
    fields = view.value(call.args[0])
    return list(fields.fields) if isinstance(fields, relax.Tuple) else []


def halves(source: Any, order: Order) -> list[relax.Call]:
    """Write the first and the second elements of all pairs."""
    shape = known_shape(source) or []
    axis, size = len(shape) - 1, extent(shape[-1]) or 0
    if order == "interleaved":
        cuts = [((which,), (size,), (2,)) for which in (0, 1)]
    else:
        cuts = [((0,), (size // 2,), (1,)), ((size // 2,), (size,), (1,))]
    return [relax.op.strided_slice(source, (axis,), *cut) for cut in cuts]
