"""What operators read of their operands for a part of their result: a rule for each kind."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

from tvm import relax, tirx
from tvm.ir import GenericConst

from ...frontend.normalize.engine import op_name
from ..egraph.facts.axes import keeps_axes, permutation, reduced_axes
from ..egraph.facts.extents import extents, is_one, same
from ..egraph.head import Head, operands
from ..laws.shapes.concats import axis_of
from ..laws.shapes.slices import Range, ranges

#: Elements that are read along each axis; None: all of them.
Part: TypeAlias = tuple[Range | None, ...]


@dataclass(frozen=True)
class Read:
    """What an operator reads for a part of its result."""

    own: Part  # what is computed: the part, and perhaps more
    parts: list[Part | None]  # of the operands; None: nothing
    # Takes the parts; returns what is computed.
    write: Callable[[list[Any]], Any]


def tensors_of(value: Any) -> list[Any]:
    """List the tensors that a value reads, where it is a call."""
    return operands(value) if isinstance(value, relax.Call) else []


def read_of(value: Any, part: Part) -> Read | None:
    """Ask the rule of an operator; None where it has none, or all of its operands are read."""
    rule = _RULES.get(op_name(value))
    types = [value.ty, *(o.ty for o in tensors_of(value))] if rule is not None else []
    if rule is None or any(
        not isinstance(ty, relax.TensorType) or not isinstance(ty.shape, relax.ShapeExpr)
        for ty in types
    ):
        return None
    return rule(value, _fitted(value.ty, part))


def _fitted(ty: relax.TensorType, part: Sequence[Range | None]) -> Part:
    """Write an axis of which all elements are read as one of which all are."""
    plain = (r if r is None or r.length > 1 else r._replace(stride=1) for r in part)
    return tuple(
        None if r == Range(0, e, 1) else r for r, e in zip(plain, extents(ty), strict=True)
    )


def _as_it_is(call: relax.Call) -> Callable[[list[Any]], Any]:
    return Head(op_name(call), (), call).apply


def shape_of(ty: relax.TensorType, part: Part) -> list[Any]:
    """Return the shape of a part of a tensor."""
    return [e if r is None else r.length for e, r in zip(extents(ty), part, strict=True)]


def _aligned(ty: relax.TensorType, part: Part) -> Part:
    """Return what is read of an operand that is broadcast to the result."""
    own = part[len(part) - ty.ndim :]
    return tuple(None if is_one(e) else r for e, r in zip(extents(ty), own, strict=True))


def _without(part: Part, axes: Sequence[int]) -> Part:
    """Read all elements along some axes."""
    return tuple(None if i in axes else r for i, r in enumerate(part))


# Rules: which parts of its operands an operator reads for a part of its result.


def _elements(call: relax.Call, part: Part) -> Read | None:
    sizes = extents(call.ty)
    for operand in operands(call):
        own = extents(operand.ty)
        lead = len(sizes) - len(own)
        pairs = zip(own, sizes[lead:], part[lead:], strict=True)
        if any(r and not (is_one(e) or same(e, size)) for e, size, r in pairs):
            return None  # the extent is 1 or not when the model runs
    parts: list[Part | None] = [_aligned(o.ty, part) for o in operands(call)]
    return Read(part, parts, _as_it_is(call))


def _broadcast(call: relax.Call, part: Part) -> Read:
    def write(given: list[Any]) -> Any:
        return relax.op.broadcast_to(given[0], shape_of(call.ty, part))

    return Read(part, [_aligned(call.args[0].ty, part)], write)


def _product(call: relax.Call, part: Part) -> Read | None:
    a, b = (o.ty for o in call.args)
    if a.ndim < 2 or b.ndim < 2:
        return None
    left, right = (*part[:-1], None), (*part[:-2], None, part[-1])
    return Read(part, [_aligned(a, left), _aligned(b, right)], _as_it_is(call))


def _reduction(call: relax.Call, part: Part) -> Read:
    rank = call.args[0].ty.ndim
    head = Head(op_name(call), (), call)
    axes = reduced_axes(head, rank)
    left = iter(part)
    if keeps_axes(head):
        return Read(_without(part, axes), [_without(part, axes)], _as_it_is(call))
    return Read(part, [tuple(None if i in axes else next(left) for i in range(rank))], head.apply)


def _rows(call: relax.Call, part: Part) -> Read:
    """Norms and softmax, with vectors along the axes of their rows."""
    is_norm = op_name(call).endswith("norm")
    axes = call.attrs.axes if is_norm else [call.attrs.axis]
    own = _without(part, [int(axis) % len(part) for axis in axes])
    vectors: list[Part | None] = [(None,) * o.ty.ndim for o in operands(call)[1:]]
    return Read(own, [own, *vectors], _as_it_is(call))


def _attention(call: relax.Call, part: Part) -> Read | None:
    batch, queries, heads, _ = part
    if call.attrs.causal_mask is not None:  # which counts from the end
        return None
    q, k, _, *bias = operands(call)
    if not same(extents(q.ty)[2], extents(k.ty)[2]):
        heads = None
    whole: Part = (batch, None, heads, None)
    read: list[Part | None] = [(batch, queries, heads, None), whole, whole]
    read += [_aligned(b.ty, (batch, heads, queries, None)) for b in bias]
    return Read((batch, queries, heads, None), read, _as_it_is(call))


def _permuted(call: relax.Call, part: Part) -> Read:
    order = permutation(Head(op_name(call), (), call), len(part))
    source = {axis: r for axis, r in zip(order, part, strict=True)}
    return Read(part, [tuple(source[i] for i in range(len(part)))], _as_it_is(call))


def _reshaped(call: relax.Call, part: Part) -> Read:
    before, after = extents(call.args[0].ty), extents(call.ty)
    source: list[Range | None] = [None] * len(before)
    own: list[Range | None] = [None] * len(after)
    for first, second in _groups(before, after):
        if not any(part[i] for i in second):
            continue
        if len(first) == len(second) == 1:
            source[first[0]] = own[second[0]] = part[second[0]]
            continue
        ranges_of_group = [part[i] or Range(0, after[i], 1) for i in second]
        found = _split(
            _flat(ranges_of_group, [after[i] for i in second]), [before[j] for j in first]
        )
        if found is None:
            continue
        for i in second:
            own[i] = part[i]
        for j, r in zip(first, found, strict=True):
            source[j] = r
    whole = tuple(own)

    def write(given: list[Any]) -> Any:
        return relax.op.reshape(given[0], shape_of(call.ty, whole))

    return Read(whole, [_fitted(call.args[0].ty, source)], write)


def _groups(before: list[Any], after: list[Any]) -> Iterator[tuple[list[int], list[int]]]:
    """Yield axes of a reshape's operand and of its result that hold the same elements, 1 aside."""
    first = deque(j for j, e in enumerate(before) if not is_one(e))
    second = deque(i for i, e in enumerate(after) if not is_one(e))
    while first and second and same(before[first[-1]], after[second[-1]]):
        yield [first.pop()], [second.pop()]
    while first and second:
        one, other = [first.popleft()], [second.popleft()]
        if not same(before[one[0]], after[other[0]]):
            if not all(isinstance(e, int) and e for e in (*before, *after)):
                return
            while (a := prod(before[j] for j in one)) != (b := prod(after[i] for i in other)):
                one.append(first.popleft()) if a < b else other.append(second.popleft())
        yield one, other


def _flat(parts: Sequence[Range], sizes: Sequence[int]) -> Range | None:
    """Find the parts of some axes as a range of the axis that they make together."""
    found, *others = parts
    for inner, size in zip(others, sizes[1:], strict=True):
        start = found.begin * size + inner.begin
        if inner.length == 1:
            found = Range(start, found.length, found.stride * size)
        elif found.length == 1:
            found = Range(start, inner.length, inner.stride)
        elif found.stride == 1 and inner == Range(0, size, 1):
            found = Range(start, found.length * size, 1)
        else:
            return None
    return found


def _split(part: Range | None, sizes: Sequence[int]) -> list[Range] | None:
    """Find a range of an axis as parts of the axes that it is made of."""
    found: list[Range] = []
    for size in reversed(sizes[1:]):
        if part is None:
            return None
        outer, inner = divmod(part.begin, size)
        if inner + (part.length - 1) * part.stride < size:
            found.append(Range(inner, part.length, part.stride))
            part = Range(outer, 1, 1)
        elif part.stride % size == 0:
            found.append(Range(inner, 1, 1))
            part = Range(outer, part.length, part.stride // size)
        elif part.stride == 1 and inner == 0 and part.length % size == 0:
            found.append(Range(0, size, 1))
            part = Range(outer, part.length // size, 1)
        else:
            return None
    return None if part is None else [part, *reversed(found)]


def _joined(call: relax.Call, part: Part) -> Read | None:
    pieces, axis = operands(call), axis_of(Head(op_name(call), (), call)) % len(part)
    wanted, start = part[axis], 0
    read: list[Part | None] = []
    for piece in pieces:
        extent = extents(piece.ty)[axis]
        if wanted is None:
            read.append(part)
            continue
        if not isinstance(extent, int):
            return None
        first, behind = (  # of the elements that are wanted, by their number
            min(max(0, -((wanted.begin - at) // wanted.stride)), wanted.length)
            for at in (start, start + extent)
        )
        begin = wanted.begin + first * wanted.stride - start
        of_axis = Range(begin, behind - first, wanted.stride)
        own = _fitted(piece.ty, (*part[:axis], of_axis, *part[axis + 1 :]))
        read.append(own if of_axis.length else None)
        start += extent

    def write(given: list[Any]) -> Any:
        kept = [piece for piece in given if piece is not None]
        return kept[0] if len(kept) == 1 else relax.op.concat(kept, axis)

    return Read(part, read, write)


def _taken(call: relax.Call, part: Part) -> Read | None:
    source, index = call.args
    if isinstance(index, GenericConst) and index.ty.ndim == 0:
        number = int(index.value.numpy())
    elif isinstance(index, tirx.IntImm):
        number = int(index)
    else:
        return None
    if call.attrs.axis is None:
        return None
    axis = int(call.attrs.axis) % source.ty.ndim
    extent = extents(source.ty)[axis]
    if not isinstance(extent, int) or not 0 <= number < extent:
        return None
    cut = None if extent == 1 else Range(number, 1, 1)

    def write(given: list[Any]) -> Any:
        return relax.op.reshape(given[0], shape_of(call.ty, part))

    others: list[Part | None] = [()] * (len(operands(call)) - 1)
    return Read(part, [(*part[:axis], cut, *part[axis:]), *others], write)


def _sliced(call: relax.Call, part: Part) -> Read | None:
    source = call.args[0]
    found = ranges(Head(op_name(call), (), call), source.ty.shape)
    if found is None or any(not r.length for r in found.values()):
        return None
    read = list(part)
    for axis, r in found.items():
        own = part[axis] or Range(0, r.length, 1)
        read[axis] = Range(r.begin + own.begin * r.stride, own.length, own.stride * r.stride)
    return Read(part, [_fitted(source.ty, read)], lambda given: given[0])


_ELEMENTS = (
    "abs astype ceil clip cos erf exp floor isfinite isinf isnan log log1p expm1 logical_not "
    "negative nn.gelu nn.gelu_tanh nn.leakyrelu nn.relu nn.silu nn.softplus round rsqrt sigmoid "
    "sign sin sqrt square tan tanh trunc add divide equal floor_divide floor_mod greater "
    "greater_equal less less_equal logical_and logical_or logical_xor maximum minimum mod multiply "
    "not_equal power subtract where"
)
_RULES: dict[str, Callable[[relax.Call, Part], Read | None]] = {
    f"relax.{name}": rule
    for names, rule in (
        (_ELEMENTS, _elements),
        ("broadcast_to", _broadcast),
        ("matmul", _product),
        ("max mean min prod std sum variance", _reduction),
        ("nn.layer_norm nn.rms_norm nn.softmax nn.log_softmax", _rows),
        ("nn.attention nn.attention_bias", _attention),
        ("permute_dims", _permuted),
        ("reshape expand_dims squeeze flatten", _reshaped),
        ("concat", _joined),
        ("take", _taken),
        ("strided_slice", _sliced),
    )
    for name in names.split()
}
