"""Relax operators on constants, evaluated by numpy.

TVM's FoldConstant compiles every constant expression: tens of seconds on a convolutional
network; numpy compiles nothing. Floating point operators compute in float64 and round once.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import relax, tirx
from tvm.ir import GenericConst

from .contiguous import contiguous
from .numpy_types import is_float, result_dtype, result_shape, wide

# Relax operators on whole tensors by numpy: moved, made, gathered, reduced, multiplied.
#
# Each takes a call and its operands, and gives None for a use whose result differs between devices.
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


# Elementwise Relax operators by numpy: floating point in float64, not yet rounded.
#
# Each takes a call and its operands, and gives None for a use whose result differs between devices.
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


def _elementwise(call: Any, operands: Sequence[Any]) -> np.ndarray:
    name = call.op.name.removeprefix("relax.")
    return np.asarray((_BINARY | _UNARY)[name](*map(wide, operands)))


def _elementwise_float(call: Any, operands: Sequence[Any]) -> np.ndarray | None:
    if not all(is_float(operand) for operand in operands):
        return None
    name = call.op.name.removeprefix("relax.")
    return np.asarray((_BINARY_FLOAT | _UNARY_FLOAT)[name](*map(wide, operands)))


def _astype(call: Any, operands: Sequence[Any]) -> np.ndarray:
    array, dtype = operands[0], result_dtype(call)
    return truncated(wide(array), dtype) if is_float(array) and dtype.kind in "iu" else array


def truncated(numbers: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Cast float64 to integers as kernels do; see :mod:`tvm_fusion.lower.integers`."""
    bits = dtype.itemsize * 8
    half = 2.0 ** ((64 if bits == 64 else 32) - 1)
    beyond = numbers >= half if dtype.kind == "u" and bits >= 32 else np.zeros(numbers.shape, bool)
    shifted = np.where(beyond, numbers - half, numbers)
    inside = (shifted >= -half) & (shifted < half)
    signed = np.where(inside, shifted, -half).astype("int64")
    return np.where(beyond, signed ^ np.int64(-half), signed).astype(dtype)


def _clip(_call: Any, operands: Sequence[Any]) -> np.ndarray | None:
    array, low, high = operands
    if array.dtype.kind in "iu":  # numpy refuses a bound that the type has not
        info = np.iinfo(array.dtype)
        low, high = (min(max(end, info.min), info.max) for end in (low, high))
    return np.minimum(np.maximum(wide(array), low), high)


def _relu(_call: Any, operands: Sequence[Any]) -> np.ndarray:
    return np.maximum(operands[0], 0)


def _shift(call: Any, operands: Sequence[Any]) -> np.ndarray:
    # Beyond the width, and by negative numbers, numpy gives 0 or the sign: as kernels do.
    shift = np.left_shift if call.op.name == "relax.left_shift" else np.right_shift
    return shift(*operands)


def _where(_call: Any, operands: Sequence[Any]) -> np.ndarray:
    return np.where(*operands)


#: By the operator's name.
ELEMENTWISE: dict[str, Callable[[Any, Sequence[Any]], np.ndarray | None]] = {
    **dict.fromkeys((*_BINARY, *_UNARY), _elementwise),
    **dict.fromkeys((*_BINARY_FLOAT, *_UNARY_FLOAT), _elementwise_float),
    "astype": _astype,
    "clip": _clip,
    "nn.relu": _relu,
    "left_shift": _shift,
    "right_shift": _shift,
    "where": _where,
}


_OPERATORS = {f"relax.{name}": f for name, f in (ELEMENTWISE | TENSOR_OPERATORS).items()}
_IN_PLACE = ("float16", "float32", "float64", "int8", "uint8", "int32", "int64")


def evaluate(call: relax.Call) -> np.ndarray | None:
    """Compute an operator whose operands are constants.

    Returns
    -------
    numpy.ndarray or None
        The result in the call's shape and dtype; None where an operand is not constant, the shape
        is symbolic, or the operator or this use of it is not known here.
    """
    result = evaluate_exactly(call, [operand_of(arg) for arg in call.args])
    with np.errstate(over="ignore"):  # as the kernel's cast
        return None if result is None else result.astype(result_dtype(call), copy=False)


def evaluate_exactly(call: relax.Call, operands: Sequence[Any]) -> np.ndarray | None:
    """Compute an operator of given operands, and leave the result as numpy has it.

    Parameters
    ----------
    operands
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
    # In this order: a scalar gets an axis.
    return None if result is None else contiguous(np.asarray(result)).reshape(shape)


def knows(name: str) -> bool:
    """Tell whether an operator can be evaluated here at all."""
    return name in _OPERATORS


def operand_of(arg: Any) -> Any:
    """Return an argument as an array, a list of arrays, a list of ints or a number; else None."""
    if isinstance(arg, GenericConst):
        # Large weights are not copied where numpy knows their type.
        is_plain = str(arg.value.dtype) in _IN_PLACE
        return np.from_dlpack(arg.value) if is_plain else arg.value.numpy()
    if isinstance(arg, relax.Tuple):
        fields = [operand_of(field) for field in arg.fields]
        return None if any(field is None for field in fields) else fields
    if isinstance(arg, relax.ShapeExpr):
        arg = list(arg.values)
        return [int(v) for v in arg] if all(isinstance(v, tirx.IntImm) for v in arg) else None
    if isinstance(arg, (tirx.IntImm, tirx.FloatImm)):
        return arg.value
    return None
