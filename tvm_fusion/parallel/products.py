"""Products and tables of which each worker has columns or rows."""

from typing import Any

import ml_dtypes  # noqa: F401  (teaches numpy the name "bfloat16")
import numpy as np
from tvm import relax, s_tir, te, tirx
from tvm.ir import GenericConst

from ..core.shards import Shard
from ..core.tir.loops import find
from ..core.tir.ragged import grouped_matmul
from .plan import Partial, Split
from .rewriter import Rewriter, is_tensor
from .views import extent

_LEAST_ROWS = 2  # of a table: fewer are no vocabulary


def matmul(rewriter: Rewriter, call: relax.Call) -> tuple[Any, Any]:
    """Multiply by columns or rows of a weight, or by heads."""
    a, b = call.args
    if a.ty.ndim < 2 or b.ty.ndim < 2:
        return _whole(rewriter, call)
    one, other = rewriter.state(a), rewriter.state(b)
    inner_a, inner_b = a.ty.ndim - 1, b.ty.ndim - 2
    if rewriter.weight_of(b) is not None:
        return _by_weight(rewriter, call)
    if isinstance(one, Split) and isinstance(other, Split):
        ends = a.ty.ndim - one.shard.axis, b.ty.ndim - other.shard.axis
        segments = one.shard.segments, other.shard.segments
        if segments[0] == segments[1] and ends[0] == ends[1] > 2:
            rewriter.plan.join(one.key, other.key)
            return _local(rewriter, call), _behind(call, ends[0], one)
        if segments[0] == segments[1] and (one.shard.axis, other.shard.axis) == (inner_a, inner_b):
            return _local(rewriter, call), _sum(call, rewriter.plan.join(one.key, other.key))
        return _whole(rewriter, call)
    for state, own, peer in ((one, a, b), (other, b, a)):
        if isinstance(state, Split) and (own.ty.ndim - state.shard.axis) > 2:
            behind = own.ty.ndim - state.shard.axis
            axis = peer.ty.ndim - behind
            if axis < 0 or extent(peer.ty.shape.values[axis]) == 1:
                part = rewriter.whole(peer)
            else:
                part = rewriter.split(peer, Shard(axis, state.shard.segments), state.key)
            args = [rewriter.local(a), part] if own is a else [part, rewriter.local(b)]
            return _again(call, args), _behind(call, behind, state)
    if isinstance(one, Split) and one.shard.axis == a.ty.ndim - 2:
        return _again(call, [rewriter.local(a), rewriter.whole(b)]), _behind(call, 2, one)
    if isinstance(other, Split) and other.shard.axis == b.ty.ndim - 1:
        return _again(call, [rewriter.whole(a), rewriter.local(b)]), _behind(call, 1, other)
    return _whole(rewriter, call)


def _by_weight(rewriter: Rewriter, call: relax.Call) -> tuple[Any, Any]:
    """Multiply by a constant matrix, transposed or not, or by one for each of a batch."""
    a, b = call.args
    const, is_transposed = rewriter.weight_of(b) or (b, False)
    key, one = hash(const), rewriter.state(a)
    inner = b.ty.ndim - 2
    of = " of its transpose" if is_transposed else ""
    terms = b.ty.shape.values[inner]
    if isinstance(one, Split) and one.shard.axis == a.ty.ndim - 1:
        rows = Shard(inner, one.shard.segments)
        if not rewriter.plan.may_split(key) or not _can_part(rewriter, b, rows):
            return _whole(rewriter, call)
        region = rewriter.plan.join(one.key, key)
        part = rewriter.part_of_weight(b, rows)
        rewriter.product(key, b, call, terms, f"rows{of}")
        return _again(call, [rewriter.local(a), part]), _sum(call, region)
    if isinstance(one, Split):
        behind = a.ty.ndim - one.shard.axis
        if b.ty.ndim >= behind > 2:
            axis = b.ty.ndim - behind
            batches = Shard(axis, one.shard.segments)
            is_alike = extent(b.ty.shape.values[axis]) == one.shard.extent
            if is_alike and _can_part(rewriter, b, batches):
                part = rewriter.part_of_weight(b, batches)
                rewriter.product(rewriter.plan.join(one.key, key), b, call, terms, "batches")
                return _again(call, [rewriter.local(a), part]), _behind(call, behind, one)
        return _again(call, [rewriter.local(a), rewriter.whole(b)]), _behind(call, behind, one)
    whole = rewriter.whole(a)
    if not rewriter.plan.may_split(key) or b.ty.ndim > 2:
        return _again(call, [whole, rewriter.whole(b)]), None
    # What the user says names the axes that the model stores: rows of a table are the vocabulary.
    if rewriter.plan.role(key) == ("columns" if is_transposed else "rows"):
        segments = rewriter.plan.segments(("rows", key), extent(terms) or 0)
        if segments and _can_part(rewriter, b, Shard(inner, segments)):
            shard = Shard(a.ty.ndim - 1, segments)
            part = rewriter.split(a, shard, key)
            rewriter.product(key, b, call, terms, f"rows{of}")
            weight = rewriter.part_of_weight(b, Shard(inner, segments))
            return _again(call, [part, weight]), _sum(call, key)
    segments = rewriter.plan.segments(key, extent(b.ty.shape.values[-1]) or 0)
    if segments is None or not _can_part(rewriter, b, Shard(inner + 1, segments)):
        rewriter.plan.uneven.add(key)
        return _again(call, [whole, rewriter.whole(b)]), None
    rewriter.product(key, b, call, terms, f"columns{of}")
    part = rewriter.part_of_weight(b, Shard(inner + 1, segments))
    return _again(call, [whole, part]), Split(Shard(call.ty.ndim - 1, segments), key)


def _can_part(rewriter: Rewriter, weight: Any, shard: Shard) -> bool:
    """Whether a weight has even parts; those of numbers in blocks are whole blocks."""
    is_direct = not rewriter.computed.constants(weight)
    return is_direct or rewriter.computed.can_part(weight, shard)


def grouped(rewriter: Rewriter, call: relax.Call) -> tuple[Any, Any] | None:
    """Multiply each row by its expert's matrix, of which each worker has columns or rows."""
    gvar, args = call.args[0], list(call.args[1].fields)
    if len(args) < 3 or not isinstance(args[1], GenericConst) or args[1].ty.ndim != 3:
        return None
    func = rewriter.builder.get()[gvar] if hasattr(rewriter.builder, "get") else None
    if func is None or not _is_grouped(func):
        return None
    rows, weight, ends = args[:3]
    key, state, dtype = hash(weight), rewriter.state(rows), str(call.ty.dtype)
    terms = weight.ty.shape.values[1]
    if not rewriter.plan.may_split(key):
        return None

    def of(part: Any, matrices: Any) -> Any:
        return rewriter.builder.call_te(_multiply, part, matrices, rewriter.whole(ends), dtype)

    if isinstance(state, Split) and state.shard.axis == 1:
        region = rewriter.plan.join(state.key, key)
        matrices = rewriter.part_of(weight, Shard(1, state.shard.segments))
        rewriter.product(key, weight, call, terms, "rows of each expert")
        return of(rewriter.local(rows), matrices), Partial(region, str(rows.ty.dtype))
    segments = rewriter.plan.segments(key, extent(weight.ty.shape.values[2]) or 0)
    if segments is None:
        rewriter.plan.uneven.add(key)
        return None
    rewriter.product(key, weight, call, terms, "columns of each expert")
    matrices = rewriter.part_of(weight, Shard(2, segments))
    return of(rewriter.whole(rows), matrices), Split(Shard(1, segments), key)


def _multiply(rows: te.Tensor, matrices: te.Tensor, offsets: te.Tensor, dtype: str) -> te.Tensor:
    return grouped_matmul(rows, matrices, offsets, dtype)


def _is_grouped(func: Any) -> bool:
    """Whether a PrimFunc is that of :func:`tvm_fusion.core.tir.ragged.grouped_matmul`."""
    blocks = find(func.body, s_tir.SBlock) if isinstance(func, tirx.PrimFunc) else []
    return any(block.name_hint.startswith("grouped_matmul") for block in blocks)


def take(rewriter: Rewriter, call: relax.Call) -> tuple[Any, Any]:
    """Gather from a table that is whole, or along an axis that is."""
    data, indices = call.args
    state = rewriter.state(data)
    scalar = not is_tensor(indices)
    added = 0 if scalar else indices.ty.ndim
    axis = call.attrs.axis
    if isinstance(data, GenericConst) and not scalar and axis is not None and int(axis) == 0:
        return _from_table(rewriter, call)
    if axis is None or state is None:
        return _whole(rewriter, call)
    axis = int(axis) % data.ty.ndim
    local = _again(call, [rewriter.local(data), rewriter.whole(indices)])
    if isinstance(state, Partial):
        return local, state
    if state.shard.axis == axis:
        return _whole(rewriter, call)
    moved = state.shard.axis + (added - 1 if state.shard.axis > axis else 0)
    return local, Split(Shard(moved, state.shard.segments), state.key)


def _from_table(rewriter: Rewriter, call: relax.Call) -> tuple[Any, Any]:
    """Gather rows of a constant table, such as of token embeddings."""
    table, indices = call.args
    key, op = hash(table), relax.op
    role, found = rewriter.plan.role(key), rewriter.whole(indices)
    rows = extent(table.ty.shape.values[0]) or 0
    if role == "columns" and table.ty.ndim > 1 and rewriter.plan.may_split(key):
        segments = rewriter.plan.segments(key, extent(table.ty.shape.values[-1]) or 0)
        if segments:
            part = rewriter.part_of(table, Shard(table.ty.ndim - 1, segments))
            return _again(call, [part, found]), Split(Shard(call.ty.ndim - 1, segments), key)
    size = rewriter.plan.size
    if role != "rows" or rows < _LEAST_ROWS or rows % size or not rewriter.plan.may_split(key):
        return _again(call, [table, found]), None
    # Rows of other workers are zeros here, so that the workers' results add up. What differs
    # between workers is data, so that all run the same code.
    begin, length = rewriter.rank * (rows // size), rows // size
    inside = np.zeros(rows, str(table.ty.dtype))
    inside[begin : begin + length] = 1
    places = np.clip(np.arange(rows) - begin, 0, length - 1).astype("int32")
    part = rewriter.part_of(table, Shard(0, (rows,)))
    own = rewriter.emit(op.take(rewriter.constant(places, (key, "places")), found, 0, "clip"))
    taken = rewriter.emit(_again(call, [part, own]))
    mask = rewriter.emit(op.take(rewriter.constant(inside, (key, "inside")), found, 0, "clip"))
    shape = [*indices.ty.shape.values, *[1] * (table.ty.ndim - 1)]
    return op.multiply(taken, rewriter.emit(op.reshape(mask, shape))), Partial(
        key, str(table.ty.dtype)
    )


def _sum(call: relax.Call, key: Any) -> Partial:
    """Return the state of a product whose inner axis is split."""
    return Partial(key, str(call.args[0].ty.dtype))


def _behind(call: relax.Call, behind: int, state: Split) -> Split:
    """Return the split of a result's axis, counted from the end."""
    return Split(Shard(call.ty.ndim - behind, state.shard.segments), state.key)


def _again(call: relax.Call, args: list[Any]) -> relax.Call:
    return relax.Call(call.op, args, call.attrs, call.ty_args)


def _local(rewriter: Rewriter, call: relax.Call) -> relax.Call:
    return _again(call, [rewriter.local(arg) for arg in call.args])


def _whole(rewriter: Rewriter, call: relax.Call) -> tuple[Any, Any]:
    return _again(call, [rewriter.whole(arg) for arg in call.args]), None
