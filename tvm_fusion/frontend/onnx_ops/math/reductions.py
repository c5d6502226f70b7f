"""Convert reductions, cumulative products, TopK and Unique."""

from typing import Any

import numpy as np
from tvm import relax

from ...registry import Unsupported
from ...shape_values.facts import as_expr
from ...tensor_types import dtype_of, is_integer
from ..node import Node
from ..registry import register

op = relax.op


@register("Hardmax")
def hardmax(node: Node) -> Any:
    """Convert Hardmax since opset 13 by comparing class numbers with the first largest's."""
    shape = node.shape()
    axis = node.attribute("axis", -1) % len(shape)
    if node.opset < 13 or not isinstance(shape[axis], int):
        return None
    numbers = np.arange(shape[axis], dtype="int64")
    numbers = numbers.reshape([-1 if i == axis else 1 for i in range(len(shape))])
    largest = op.argmax(node.inputs[0], axis, keepdims=True)
    return op.astype(op.equal(relax.const(numbers, "int64"), largest), node.dtype())


@register("ReduceMax")
def reduce_max(node: Node) -> Any:
    """Convert ReduceMax of booleans, which is "any", and of nothing; others are left to TVM."""
    return _extremum(node, op.max, -np.inf)


@register("ReduceMin")
def reduce_min(node: Node) -> Any:
    """Convert ReduceMin of booleans, which is "all", and of nothing; others are left to TVM."""
    return _extremum(node, op.min, np.inf)


@register("ReduceLogSumExp")
def reduce_log_sum_exp(node: Node) -> Any:
    """Convert ReduceLogSumExp along constant axes, also of nothing and of infinities."""
    axes = _axes(node)
    nothing = None if axes is None else _of_nothing(node, axes, -np.inf)
    if nothing is not None or not axes or is_integer(node.dtype()):
        return reduce_integers(node) if nothing is None else nothing
    x = node.wide(node.inputs[0])
    largest = node.emit(op.max(x, axes, keepdims=True))
    # An infinity less itself would be NaN, as in TVM's converter.
    zero = relax.const(0, dtype_of(x))
    largest = node.emit(op.where(op.isinf(largest), zero, largest))
    keep = bool(node.attribute("keepdims", 1))
    total = op.sum(op.exp(op.subtract(x, largest)), axes, keepdims=keep)
    largest = largest if keep else op.squeeze(largest, axes)
    return node.cast(op.add(op.log(total), largest), node.dtype())


@register("ReduceL2", "ReduceLogSum")
def reduce_integers(node: Node) -> Any:
    """Convert functions of sums of integers, in float64; those of floats are left to TVM."""
    if not is_integer(node.dtype()):
        return None
    names = ("axes", "keepdims", "noop_with_empty_axes")
    attributes = {n: node.attribute(n) for n in names if node.attribute(n) is not None}
    x = node.emit(op.astype(node.inputs[0], "float64"))
    return op.astype(node.apply(node.op_type, x, *node.inputs[1:], **attributes), node.dtype())


def _extremum(node: Node, reduction: Any, neutral: float) -> Any:
    axes = _axes(node)
    if axes is None:
        if node.dtype() == "bool":
            raise Unsupported("whose axes are computed", "make the axes an initializer")
        return None
    if not axes:
        return node.inputs[0] if node.dtype() == "bool" else None
    nothing = _of_nothing(node, axes, neutral)
    if nothing is not None or node.dtype() != "bool":
        return nothing
    numbers = op.astype(node.inputs[0], "uint8")
    return op.astype(reduction(numbers, axes, bool(node.attribute("keepdims", 1))), "bool")


def _axes(node: Node) -> list[int] | None:
    """Return the reduced axes, none of them where nothing is reduced; None for computed ones."""
    rank = len(node.shape())
    axes: Any = node.attribute("axes")
    if axes is None and node.has(1):
        found = node.constant(1)
        if found is None:
            return None
        axes = [int(axis) for axis in found.reshape(-1)]
    if not axes:
        return [] if node.attribute("noop_with_empty_axes", 0) else list(range(rank))
    return [axis % rank for axis in axes]


def _of_nothing(node: Node, axes: list[int], neutral: float) -> Any:
    """Return the neutral element in the result's shape where a reduced extent is zero."""
    shape, dtype = node.shape(), node.dtype()
    if not any(isinstance(shape[axis], int) and shape[axis] == 0 for axis in axes):
        return None
    keep = bool(node.attribute("keepdims", 1))
    out = [1 if i in axes else extent for i, extent in enumerate(shape) if keep or i not in axes]
    value: Any = neutral
    if dtype == "bool":
        value = neutral > 0
    elif "float" not in dtype:
        limits = np.iinfo(dtype)
        value = limits.max if neutral > 0 else limits.min
    return op.full(relax.ShapeExpr(out), relax.const(value, dtype), dtype)


@register("CumProd")
def cumulative_product(node: Node) -> Any:
    """Convert CumProd along a constant axis, from either end, with or without the element."""
    axis = int(node.required_constant(1, "axis").reshape(-1)[0]) % len(node.shape())
    x, is_reverse = node.wide(node.inputs[0]), node.attribute("reverse", 0)
    x = op.flip(x, axis) if is_reverse else x
    x = op.cumprod(x, axis, exclusive=bool(node.attribute("exclusive", 0)))
    return node.cast(op.flip(x, axis) if is_reverse else x, node.dtype())


@register("TopK")
def top_k(node: Node) -> Any:
    """Convert TopK of unsigned numbers in int64, and of a K that is no number; others are TVM's.

    TVM's sort knows signed numbers and uint8 only.
    """
    dtype, count = node.dtype(), node.extents(1)
    if count is None and node.constant(1) is None:
        return _first_of_sorted(node, None)
    if count is not None and not isinstance(count[0], int):
        return _first_of_sorted(node, count[0])
    extent = node.shape()[node.attribute("axis", -1)]
    if count is not None and isinstance(extent, int) and not 0 <= count[0] <= extent:
        raise Unsupported(f"of {count[0]} of {extent} elements", "correct its K")
    if dtype not in ("uint16", "uint32", "uint64"):
        return None
    node.required_constant(1, "K")
    names = ("axis", "largest", "sorted")
    attributes = {n: node.attribute(n) for n in names if node.attribute(n) is not None}
    x = op.astype(node.inputs[0], "int64")
    # Of 64 bits the order changes with the sign, which is the highest bit.
    sign = relax.const(np.iinfo("int64").min, "int64") if dtype == "uint64" else None
    x = x if sign is None else op.bitwise_xor(x, sign)
    values, indices = node.apply_all("TopK", 2, node.emit(x), node.inputs[1], **attributes)
    values = values if sign is None else op.bitwise_xor(values, sign)
    return [op.astype(values, dtype), indices]


def _first_of_sorted(node: Node, count: Any) -> Any:
    """Take a symbolic number of elements of the sorted axis, or one that is computed."""
    x, shape = node.inputs[0], node.shape()
    axis = node.attribute("axis", -1) % len(shape)
    descending = bool(node.attribute("largest", 1))
    node.attribute("sorted")  # which they are
    places = node.emit(op.argsort(x, axis, descending, "int64"))
    if count is None:
        wanted = node.emit(node.cast(node.inputs[1], "int64"))
        whole = node.emit(op.shape_to_tensor(relax.ShapeExpr([shape[axis]])))
        fits = op.greater_equal(wanted, relax.const(0, "int64"))
        fits = op.logical_and(fits, op.less_equal(wanted, whole))
        (count,) = node.computed_extents(wanted, fits, [None])
        places = node.emit(op.strided_slice(places, [axis], [0], [count], assume_inbound=True))
    elif not node.facts.equal(count, shape[axis]):
        if not node.facts.proves(as_expr(count) <= as_expr(shape[axis])):
            raise Unsupported("whose K may exceed the number of elements", "give other ranges")
        places = node.emit(op.strided_slice(places, [axis], [0], [count], assume_inbound=True))
    return [op.gather_elements(x, places, axis), places]


@register("Unique")
def unique(node: Node) -> Any:
    """Convert Unique of bfloat16, which numpy does not sort, in float32; others are left to TVM."""
    from tvm.relax.frontend.onnx.onnx_frontend import Unique

    if node.dtype() != "bfloat16":
        return None
    attributes = {
        name: node.attribute(name)
        for name in ("axis", "sorted")
        if node.attribute(name) is not None
    }
    custom = {"tvm_custom": {"num_outputs": len(node.proto.output)}}
    wide = node.emit(op.astype(node.inputs[0], "float32"))
    found = Unique._impl_v11(node.builder, [wide], attributes | custom, [{}, {}])
    first, *rest = list(found) if isinstance(found, relax.Tuple) else [found]
    return [op.astype(first, "bfloat16"), *rest]
