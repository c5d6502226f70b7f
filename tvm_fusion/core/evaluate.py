"""Relax operators on constants, evaluated by numpy.

TVM's FoldConstant compiles every constant expression: tens of seconds on a convolutional
network; numpy compiles nothing. Floating point operators compute in float64 and round once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax, tirx
from tvm.ir import GenericConst

from .contiguous import contiguous
from .numpy_elementwise import ELEMENTWISE
from .numpy_tensor_operators import TENSOR_OPERATORS
from .numpy_types import result_dtype, result_shape

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
    return None if result is None else result.astype(result_dtype(call), copy=False)


def evaluate_exactly(call: relax.Call, operands: Sequence[Any]) -> np.ndarray | None:
    """Compute an operator of given operands, and leave the result as numpy has it.

    Parameters
    ----------
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
