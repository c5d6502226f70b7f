"""Relax operators on whole tensors by numpy: moved, made, gathered, reduced, multiplied.

Each takes a call and its operands, and gives None for a use whose result differs between devices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .numpy_types import is_float, result_dtype, result_shape, wide

_Function = Callable[[Any, Sequence[Any]], "np.ndarray | None"]
#: By the operator's name.
TENSOR_OPERATORS: dict[str, _Function] = {}


def _register(*names: str) -> Callable[[_Function], _Function]:
    def add(function: _Function) -> _Function:
        for name in names:
            TENSOR_OPERATORS[name] = function
        return function

    return add


# Only the shape changes, and evaluate() gives the result its shape.
@_register("reshape", "expand_dims", "squeeze", "flatten", "shape_to_tensor")
def _same_elements(_call: Any, operands: Sequence[Any]) -> np.ndarray:
    return np.asarray(operands[0])


@_register("permute_dims")
def _permute_dims(call: Any, operands: Sequence[Any]) -> np.ndarray:
    axes = call.attrs.axes
    return np.transpose(operands[0], None if axes is None else [int(axis) for axis in axes])


@_register("concat")
def _concat(call: Any, operands: Sequence[Any]) -> np.ndarray:
    return np.concatenate(operands[0], axis=int(call.attrs.axis or 0))


@_register("stack")
def _stack(call: Any, operands: Sequence[Any]) -> np.ndarray:
    return np.stack(operands[0], axis=int(call.attrs.axis or 0))


@_register("broadcast_to")
def _broadcast_to(_call: Any, operands: Sequence[Any]) -> np.ndarray:
    return np.broadcast_to(operands[0], operands[1])


@_register("strided_slice")
def _strided_slice(_call: Any, operands: Sequence[Any]) -> np.ndarray | None:
    array, axes, begins, ends = operands[:4]
    strides = operands[4] if len(operands) > 4 else [1] * len(axes)
    index = [slice(None)] * array.ndim
    for axis, begin, end, stride in zip(axes, begins, ends, strides, strict=True):
        if stride < 0:  # -1 as an end means "before the first" there, and numpy's slice differs
            return None
        index[axis] = slice(begin, end, stride)
    return array[tuple(index)]


@_register("take")
def _take(call: Any, operands: Sequence[Any]) -> np.ndarray | None:
    array, indices = operands
    axis = call.attrs.axis
    extent = array.size if axis is None else array.shape[int(axis)]
    if np.any(indices < 0) or np.any(indices >= extent):  # modes differ only there
        return None
    return np.take(array, indices, axis=None if axis is None else int(axis))


@_register("index_tensor", "gather_elements")
def _gather(call: Any, operands: Sequence[Any]) -> np.ndarray | None:
    array, indices = operands
    if call.op.name == "relax.gather_elements":
        axis = int(call.attrs.axis)
        return (
            np.take_along_axis(array, indices, axis) if _inside([indices], [axis], array) else None
        )
    return array[tuple(indices)] if _inside(indices, range(array.ndim), array) else None


def _inside(indices: Sequence[Any], axes: Sequence[int], array: np.ndarray) -> bool:
    return all(
        i.dtype.kind in "iu" and (i >= 0).all() and (i < array.shape[axis]).all()
        for i, axis in zip(indices, axes, strict=False)
    )


@_register("full")
def _full(_call: Any, operands: Sequence[Any]) -> np.ndarray:
    return np.broadcast_to(operands[1], operands[0])


@_register("full_like")
def _full_like(call: Any, operands: Sequence[Any]) -> np.ndarray:
    return np.broadcast_to(operands[1], result_shape(call) or ())


@_register("zeros", "zeros_like")
def _zeros(call: Any, _operands: Sequence[Any]) -> np.ndarray:
    return np.broadcast_to(0, result_shape(call) or ())


@_register("ones", "ones_like")
def _ones(call: Any, _operands: Sequence[Any]) -> np.ndarray:
    return np.broadcast_to(1, result_shape(call) or ())


@_register("arange")
def _arange(_call: Any, operands: Sequence[Any]) -> np.ndarray:
    return np.arange(*operands)


@_register("tril", "triu")
def _tril_or_triu(call: Any, operands: Sequence[Any]) -> np.ndarray:
    return (np.tril if call.op.name == "relax.tril" else np.triu)(operands[0], operands[1])


@_register("cumsum")
def _cumsum(call: Any, operands: Sequence[Any]) -> np.ndarray | None:
    if call.attrs.exclusive or call.attrs.axis is None:
        return None
    return np.cumsum(wide(operands[0]), axis=int(call.attrs.axis))


@_register("sum", "max", "min", "mean")
def _reduce(call: Any, operands: Sequence[Any]) -> np.ndarray | None:
    array, name = operands[0], call.op.name.removeprefix("relax.")
    if not is_float(array) and name == "mean":
        return None
    axis = call.attrs.axis
    axes = None if axis is None else tuple(int(a) for a in axis)
    return np.asarray(getattr(np, name)(wide(array), axis=axes, keepdims=call.attrs.keepdims))


@_register("prod")
def _prod(call: Any, operands: Sequence[Any]) -> np.ndarray:
    axes = call.attrs.axis
    axis = None if axes is None else tuple(int(a) for a in axes)
    return np.asarray(np.prod(wide(operands[0]), axis=axis, keepdims=call.attrs.keepdims))


#: Multiplications of a product of constants that are worth a compilation's time.
_MOST_MULTIPLICATIONS = 1 << 33


@_register("matmul")
def _matmul(call: Any, operands: Sequence[Any]) -> np.ndarray | None:
    shape, terms = result_shape(call), operands[0].shape[-1]
    if shape is None or np.prod(shape, dtype=np.int64) * terms > _MOST_MULTIPLICATIONS:
        return None
    if not is_float(operands[0]):  # narrow ones would wrap around before they are added up
        return np.matmul(*(o.astype(result_dtype(call)) for o in operands))
    return np.matmul(*map(wide, operands))


@_register("dequantize")
def _dequantize(call: Any, operands: Sequence[Any]) -> np.ndarray | None:
    """Compute a bias of int32 as kernels do; bytes are weights, which kernels multiply as bytes."""
    array, scale, zero = (np.asarray(operand) for operand in operands)
    if array.dtype != np.int32:
        return None
    along = [1] * array.ndim
    if array.ndim:
        along[call.attrs.axis] = -1
    scale, zero = (
        part.reshape(along) if part.size > 1 else part.reshape(()) for part in (scale, zero)
    )
    return (array - zero).astype("float32") * scale.astype("float32")
