"""Attention whose queries share keys, of prompts or behind a cache; rotary embedding."""

from typing import Any

from tvm import relax, tirx

from ...tensor_types import dtype_of, static
from ..node import Node
from ..registry import Unsupported, register
from .attention import attend, is_static, join_heads, lowest_of, split_heads

op = relax.op


@register("com.microsoft::RotaryEmbedding")
def rotary_embedding(node: Node) -> Any:
    """Convert the rotation of pairs by angles of positions."""
    x, cos, sin = node.inputs[0], node.inputs[2], node.inputs[3]
    if node.attribute("scale", 1.0) != 1.0 or node.attribute("is_packed_batching", 0):
        raise Unsupported("with a scale or packed batches", "use scale=1 and padded batches")
    partial = node.attribute("rotary_embedding_dim", 0)
    half = node.static_shape(2)[1]
    shape = node.shape(0)
    heads = node.attribute("num_heads", 0)
    is_flat = len(shape) == 3
    if is_flat:
        width = shape[2] // heads if partial and heads else 2 * half
        x = split_heads(node, x, shape[2] // width)
    steps = list(x.ty.shape)[2]
    positions = node.inputs[1]
    if len(node.shape(1)) == 1:  # of the first row's first element
        positions = op.add(op.arange(0, steps, dtype=node.dtype(1)), positions)
        positions = op.expand_dims(node.emit(positions), 0)
    angles = look_up_angles(node, node.emit(positions), cos, sin)
    result = rotate(node, x, *angles, bool(node.attribute("interleaved", 0)))
    return join_heads(node, result) if is_flat else result


def look_up_angles(node: Node, positions: Any, cos: Any, sin: Any) -> tuple[Any, Any]:
    """Look cosines and sines up: batch, 1, length, half of the width."""
    found = [node.emit(op.take(table, positions, 0)) for table in (cos, sin)]
    return node.emit(op.expand_dims(found[0], 1)), node.emit(op.expand_dims(found[1], 1))


def rotate(node: Node, x: Any, cos: Any, sin: Any, is_interleaved: bool) -> Any:
    """Rotate the pairs of the first elements of each head; the others stay."""
    shape = list(x.ty.shape)
    width, half = int(shape[3]), int(list(cos.ty.shape)[3])

    def part(start: int, end: int, step: int = 1) -> Any:
        return node.emit(op.strided_slice(x, [3], [start], [end], [step]))

    if is_interleaved:
        first, second = part(0, 2 * half, 2), part(1, 2 * half, 2)
    else:
        first, second = part(0, half), part(half, 2 * half)
    one = op.subtract(node.emit(op.multiply(first, cos)), node.emit(op.multiply(second, sin)))
    two = op.add(node.emit(op.multiply(first, sin)), node.emit(op.multiply(second, cos)))
    rotated = [node.emit(one), node.emit(two)]
    if is_interleaved:
        pairs = node.emit(op.stack(rotated, -1))
        rotated = [node.emit(op.reshape(pairs, [*shape[:3], 2 * half]))]
    rest = [part(2 * half, width)] if width > 2 * half else []
    joined = [*rotated, *rest]
    return joined[0] if len(joined) == 1 else node.emit(op.concat(joined, 3))


# Attention of ONNX Runtime's domain whose queries share keys, of prompts or behind a cache.
#
# Semantics: ``docs/ContribOperators.md`` of ONNX Runtime.


@register("com.microsoft::GroupQueryAttention")
def group_query_attention(node: Node) -> Any:
    """Convert causal attention whose queries share keys, of prompts or behind a cache.

    ``seqlens_k`` tells how many tokens each row of the batch has, so how many were there before::

        before[b] = max(seqlens_k[b] + 1 - new tokens, 0)
        query s, at before[b] + s, sees the keys up to there

    New keys and values are written from ``before[b]`` on: into a buffer of fixed length, which the
    cache is if its extent is fixed and no total length says otherwise, or into the cache with as
    many places as there are new tokens behind it.
    """
    for name in ("k_quant_type", "v_quant_type"):
        if node.attribute(name, "NONE") != "NONE":
            raise Unsupported("with a quantized cache", "use a cache of floating point numbers")
    if node.attribute("qk_output", 0) or node.uses(3):
        raise Unsupported("that returns its scores", "leave out its fourth output")
    if any(node.has(i) for i in (12, 13, 14, 15, 16)):
        raise Unsupported("with scales or norms of keys", "write it as single operators")
    q, k, v = _heads(node)
    steps = list(q.ty.shape)[2]
    rows = node.emit(op.add(node.cast(node.inputs[5], "int64"), relax.const(1, "int64")))
    rows = node.emit(op.reshape(rows, [-1, 1]))
    before = None
    if _has_cache(node):
        if not node.uses(1):
            raise Unsupported("behind a cache that it does not return", "return present_key")
        less = relax.const(0, "int64")
        count = _number_of(node, steps)
        before = node.emit(op.maximum(node.emit(op.subtract(rows, count)), less))
    if node.attribute("do_rotary", 0):
        q, k = _rotated(node, q, k, steps, before)
    if before is not None:
        is_buffer = _is_buffer(node, steps)
        k, v = (_written(node, node.inputs[i], x, before, is_buffer) for i, x in ((3, k), (4, v)))
    biases = [_causal_from(node, q, k, before, node.attribute("local_window_size", -1))]
    if node.has(10):
        covered, keys = node.shape(10)[3], static(list(k.ty.shape)[2])
        if isinstance(covered, int) and keys not in (None, covered):
            raise Unsupported(
                f"whose bias is of {covered} keys and its cache of {keys}",
                f"give it a bias of {keys} keys; those behind the last token are masked",
            )
        biases.append(node.inputs[10])
    repeats = node.attribute("num_heads") // node.attribute("kv_num_heads")
    keys, values = (node.emit(op.repeat(x, repeats, 1)) if repeats > 1 else x for x in (k, v))
    cap = node.attribute("softcap", 0.0)
    return [attend(node, q, keys, values, biases, cap, _sinks(node)), k, v]


def _heads(node: Node) -> list[Any]:
    """Split queries, keys and values, which may come in one tensor, into heads."""
    heads, shared = node.attribute("num_heads"), node.attribute("kv_num_heads")
    if node.has(1):
        items = node.inputs[:3]
    else:
        width = node.static_shape(0)[2] // (heads + 2 * shared) if is_static(node, 0, 2) else 0
        parts = node.emit(op.split(node.inputs[0], [heads * width, (heads + shared) * width], 2))
        items = [node.emit(relax.TupleGetItem(parts, i)) for i in range(3)]
    counts = (heads, shared, shared)
    return [split_heads(node, x, n) for x, n in zip(items, counts, strict=True)]


def _has_cache(node: Node) -> bool:
    """Whether there are keys before the new ones; a cache without elements is none."""
    return node.has(3) and node.shape(3)[2] != 0


def _is_buffer(node: Node, steps: Any) -> bool:
    """Whether a cache is as long before as it is afterwards."""
    length, total = node.shape(3)[2], node.constant(6)
    if not isinstance(length, int):
        return False
    if total is None:
        return True
    told, new = int(total.reshape(-1)[0]), static(steps)
    if new is not None and told > length and told != length + new:
        raise Unsupported(
            f"of a cache of {length} places and total_sequence_length {told}",
            f"give it at most {length} for a buffer, or {length + new} for a cache that grows",
        )
    return told <= length


def _number_of(node: Node, extent: Any) -> Any:
    """Return an extent as a tensor."""
    if isinstance(extent, tirx.IntImm):
        return relax.const(int(extent), "int64")
    return node.emit(op.shape_to_tensor(relax.ShapeExpr([extent])))


def _rotated(node: Node, q: Any, k: Any, steps: Any, before: Any) -> list[Any]:
    """Rotate queries and keys by the angles of their positions."""
    if node.has(9):
        positions = node.inputs[9]
    else:
        positions = node.emit(op.expand_dims(op.arange(0, steps, dtype="int64"), 0))
        if before is not None:
            positions = node.emit(op.add(positions, before))
    angles = look_up_angles(node, positions, node.inputs[7], node.inputs[8])
    is_interleaved = bool(node.attribute("rotary_interleaved", 0))
    cos, sin = (node.wide(x) for x in angles)
    dtype = dtype_of(q)
    rotated = [rotate(node, node.wide(x), cos, sin, is_interleaved) for x in (q, k)]
    return [node.emit(node.cast(x, dtype)) for x in rotated]


def _written(node: Node, past: Any, new: Any, before: Any, is_buffer: bool) -> Any:
    """Write new keys or values behind those of their row; a cache that grows is zero elsewhere."""
    batch, heads, length, width = list(past.ty.shape)
    steps = list(new.ty.shape)[2]
    zero = relax.const(0, dtype_of(new))
    first = node.emit(op.expand_dims(before, [1, 3]))  # batch, 1, 1, 1
    total = length if is_buffer else length + steps

    def places(count: Any) -> Any:
        return node.emit(op.reshape(op.arange(0, count, dtype="int64"), [1, 1, count, 1]))

    if not is_buffer:
        more = node.emit(op.full([batch, heads, steps, width], zero, dtype_of(new)))
        longer = node.emit(op.concat([past, more], 2))
        is_old = node.emit(op.less(places(total), first))
        past = node.emit(op.where(is_old, longer, zero))
    if isinstance(steps, tirx.IntImm) and int(steps) == 1:  # what may be written in place
        is_new = node.emit(op.equal(places(total), first))
        return node.emit(op.where(is_new, new, past))
    starts = node.emit(op.reshape(before, [-1]))
    return node.emit(node.apply("TensorScatter", past, new, starts, axis=2))


def _sinks(node: Node) -> Any:
    """Return the score of what each head attends to besides the keys, ``[1, heads, 1, 1]``."""
    heads, dtype = node.attribute("num_heads"), node.dtype(0)
    if node.has(11):
        return node.emit(op.reshape(node.inputs[11], [1, heads, 1, 1]))
    if node.attribute("smooth_softmax", 0) > 0:
        return node.emit(op.zeros([1, heads, 1, 1], dtype))
    return None


def _causal_from(node: Node, q: Any, k: Any, before: Any, window: int) -> Any:
    """Mask what a query must not see, where each row of the batch has a length of its own."""
    steps, total = list(q.ty.shape)[2], list(k.ty.shape)[2]
    dtype = str(q.ty.dtype.dtype)
    column = op.reshape(op.arange(0, total, dtype="int64"), [1, 1, total])
    row = op.reshape(op.arange(0, steps, dtype="int64"), [1, steps, 1])
    if before is not None:
        row = op.add(row, node.emit(op.expand_dims(before, 2)))
    visible = op.less_equal(node.emit(column), node.emit(row))
    if window > 0:
        nearest = op.subtract(node.emit(row), relax.const(window, "int64"))
        visible = op.logical_and(visible, op.greater(node.emit(column), node.emit(nearest)))
    lowest = relax.const(lowest_of(dtype), dtype)
    mask = op.where(node.emit(visible), relax.const(0, dtype), lowest)
    return node.emit(op.expand_dims(node.emit(mask), 1))
