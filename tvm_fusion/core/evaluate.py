"""Relax operators on constants, evaluated by numpy.

TVM's FoldConstant compiles every constant expression: tens of seconds on a convolutional
network; numpy compiles nothing. Floating point operators compute in float64 and round once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
from tvm import relax, tirx
from tvm.ir import GenericConst

_Function = Callable[[Any, Sequence[Any]], "np.ndarray | None"]
_OPERATORS: dict[str, _Function] = {}


def evaluate(call: relax.Call) -> np.ndarray | None:
    """Compute an operator whose operands are constants.

    Parameters
    ----------
    call : tvm.relax.Call
        A normalized call.

    Returns
    -------
    numpy.ndarray or None
        The result in the call's shape and dtype; None where an operand is not constant, the shape
        is symbolic, or the operator or this use of it is not known here.
    """
    result = evaluate_exactly(call, [_operand(arg) for arg in call.args])
    return None if result is None else result.astype(result_dtype(call), copy=False)


def evaluate_exactly(call: relax.Call, operands: Sequence[Any]) -> np.ndarray | None:
    """Compute an operator of given operands, and leave the result as numpy has it.

    Parameters
    ----------
    call : tvm.relax.Call
        A normalized call.
    operands : sequence
        An array, a list of arrays, a list of ints or a number for each of its arguments; None for
        what is not known.

    Returns
    -------
    numpy.ndarray or None
        The result in the call's shape: floating point in float64, not rounded to the call's dtype.
        None as :func:`evaluate`.
    """
    function = _OPERATORS.get(getattr(call.op, "name", ""))
    shape = result_shape(call)
    if function is None or shape is None or any(operand is None for operand in operands):
        return None
    with np.errstate(all="ignore"):
        result = function(call, operands)
    # In this order: ascontiguousarray gives a scalar an axis.
    return None if result is None else np.ascontiguousarray(result).reshape(shape)


def result_shape(call: relax.Call) -> tuple[int, ...] | None:
    """Return the static shape of a call's tensor result, or None."""
    ty = call.ty
    if not isinstance(ty, relax.TensorType) or ty.shape is None:
        return None
    extents = list(ty.shape)
    if not all(isinstance(extent, tirx.IntImm) for extent in extents):
        return None
    return tuple(int(extent) for extent in extents)


def result_dtype(call: relax.Call) -> np.dtype:
    """Return the dtype of a call's tensor result."""
    return numpy_dtype(call.ty.dtype.dtype)


def numpy_dtype(name: Any) -> np.dtype:
    """Return the numpy or ml_dtypes dtype of TVM's name for it."""
    return np.dtype(getattr(ml_dtypes, str(name), str(name)))


def knows(name: str) -> bool:
    """Tell whether an operator can be evaluated here at all."""
    return name in _OPERATORS


def _operand(arg: Any) -> Any:
    """Return an operand as an array, a list of arrays, a list of ints or a number."""
    if isinstance(arg, GenericConst):
        return arg.value.numpy()
    if isinstance(arg, relax.Tuple):
        fields = [_operand(field) for field in arg.fields]
        return None if any(field is None for field in fields) else fields
    if isinstance(arg, relax.ShapeExpr):
        arg = list(arg.values)
        return [int(v) for v in arg] if all(isinstance(v, tirx.IntImm) for v in arg) else None
    if isinstance(arg, (tirx.IntImm, tirx.FloatImm)):
        return arg.value
    return None


def _register(*names: str) -> Callable[[_Function], _Function]:
    def add(function: _Function) -> _Function:
        for name in names:
            _OPERATORS[f"relax.{name}"] = function
        return function

    return add


def _is_float(array: Any) -> bool:
    return isinstance(array, np.ndarray) and array.dtype.kind in "fV"


def _wide(array: Any) -> Any:
    """Bring half, single and bfloat16 to float64; leave integers and booleans."""
    return array.astype(np.float64) if _is_float(array) else array


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


@_register("astype")
def _astype(call: Any, operands: Sequence[Any]) -> np.ndarray | None:
    array, dtype = operands[0], result_dtype(call)
    if _is_float(array) and dtype.kind in "iu":
        info = np.iinfo(dtype)
        wide = _wide(array)
        # Beyond the range C leaves the result open.
        if not (np.isfinite(wide).all() and (wide > info.min).all() and (wide < info.max).all()):
            return None
    return array


@_register("clip")
def _clip(_call: Any, operands: Sequence[Any]) -> np.ndarray | None:
    array, low, high = operands
    return np.minimum(np.maximum(_wide(array), low), high)


@_register("nn.relu")
def _relu(_call: Any, operands: Sequence[Any]) -> np.ndarray:
    return np.maximum(operands[0], 0)


@_register("left_shift", "right_shift")
def _shift(call: Any, operands: Sequence[Any]) -> np.ndarray | None:
    array, bits = operands
    if np.any(bits < 0) or np.any(bits >= array.dtype.itemsize * 8):  # C leaves these open
        return None
    return (np.left_shift if call.op.name == "relax.left_shift" else np.right_shift)(array, bits)


@_register("where")
def _where(_call: Any, operands: Sequence[Any]) -> np.ndarray:
    return np.where(*operands)


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
def _triangle(call: Any, operands: Sequence[Any]) -> np.ndarray:
    return (np.tril if call.op.name == "relax.tril" else np.triu)(operands[0], operands[1])


@_register("cumsum")
def _cumsum(call: Any, operands: Sequence[Any]) -> np.ndarray | None:
    if call.attrs.exclusive or call.attrs.axis is None:
        return None
    return np.cumsum(_wide(operands[0]), axis=int(call.attrs.axis))


@_register("sum", "max", "min", "mean")
def _reduce(call: Any, operands: Sequence[Any]) -> np.ndarray | None:
    array, name = operands[0], call.op.name.removeprefix("relax.")
    if not _is_float(array) and name == "mean":
        return None
    axis = call.attrs.axis
    axes = None if axis is None else tuple(int(a) for a in axis)
    return np.asarray(getattr(np, name)(_wide(array), axis=axes, keepdims=call.attrs.keepdims))


@_register("prod")
def _prod(call: Any, operands: Sequence[Any]) -> np.ndarray:
    axes = call.attrs.axis
    axis = None if axes is None else tuple(int(a) for a in axes)
    return np.asarray(np.prod(_wide(operands[0]), axis=axis, keepdims=call.attrs.keepdims))


#: Multiplications of a product of constants that are worth a compilation's time.
_MOST_MULTIPLICATIONS = 1 << 33


@_register("matmul")
def _matmul(call: Any, operands: Sequence[Any]) -> np.ndarray | None:
    shape, terms = result_shape(call), operands[0].shape[-1]
    if shape is None or np.prod(shape, dtype=np.int64) * terms > _MOST_MULTIPLICATIONS:
        return None
    if not _is_float(operands[0]):  # narrow ones would wrap around before they are added up
        return np.matmul(*(o.astype(result_dtype(call)) for o in operands))
    return np.matmul(*map(_wide, operands))


_BINARY: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "equal": np.equal,
    "not_equal": np.not_equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "logical_xor": np.logical_xor,
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor,
    "left_shift": np.left_shift,
}
# Integers divide in several ways, and integer powers overflow.
_BINARY_FLOAT: dict[str, Callable[..., Any]] = {"divide": np.divide, "power": np.power}
_UNARY: dict[str, Callable[..., Any]] = {
    "negative": np.negative,
    "abs": np.abs,
    # As the kernel and PyTorch do: 0 for NaN, which numpy passes on.
    "sign": lambda x: np.nan_to_num(np.sign(x)),
    "square": np.square,
    "bitwise_not": np.bitwise_not,
    "logical_not": np.logical_not,
    "isnan": np.isnan,
    "isfinite": np.isfinite,
    "isinf": np.isinf,
}
_UNARY_FLOAT: dict[str, Callable[..., Any]] = {
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
    "exp": np.exp,
    "log": np.log,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "asin": np.arcsin,
    "asinh": np.arcsinh,
    "atan": np.arctan,
    "erf": np.vectorize(math.erf, otypes=[np.float64]),
    "tanh": np.tanh,
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "sigmoid": lambda x: 1.0 / (1.0 + np.exp(-x)),
}


@_register(*_BINARY, *_UNARY)
def _elementwise(call: Any, operands: Sequence[Any]) -> np.ndarray:
    name = call.op.name.removeprefix("relax.")
    return np.asarray((_BINARY | _UNARY)[name](*map(_wide, operands)))


@_register(*_BINARY_FLOAT, *_UNARY_FLOAT)
def _elementwise_float(call: Any, operands: Sequence[Any]) -> np.ndarray | None:
    if not all(_is_float(operand) for operand in operands):
        return None
    name = call.op.name.removeprefix("relax.")
    return np.asarray((_BINARY_FLOAT | _UNARY_FLOAT)[name](*map(_wide, operands)))
