"""Numbers of Python in torch's graph: held as tensors by loops, and where they are no integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import fx
from tvm import relax
from tvm.ir import is_prim_expr

from ..tensor_types import dtype_of

op = relax.op
_TENSORS = {
    "add": op.add,
    "sub": op.subtract,
    "mul": op.multiply,
    "floordiv": op.floor_divide,
    "mod": op.floor_mod,
    "ge": op.greater_equal,
    "le": op.less_equal,
    "gt": op.greater,
    "lt": op.less,
    "eq": op.equal,
    "ne": op.not_equal,
    "neg": op.negative,
}
#: Their results are no integers, whatever extents they are given: float64, as Python's.
_REAL = {
    "truediv": op.divide,
    "pow": op.power,
    "sym_float": lambda x: x,
    "_sym_sqrt": op.sqrt,
}


def as_tensor(importer: Any, value: Any) -> Any:
    """Make a tensor of a tensor, a number or an extent."""
    if isinstance(value, bool):
        return relax.const(value, "bool")
    if isinstance(value, int | float):
        return relax.const(value, "int64" if isinstance(value, int) else "float64")
    if isinstance(value, relax.Call):
        value = importer.block_builder.emit(value)
    if is_prim_expr(value):
        dtype = "bool" if str(value.ty) == "bool" else "int64"
        return importer._prim_value_to_scalar_tensor(value, dtype)
    return value


def on_numbers(
    importer: Any, name: str, convert: Callable[[fx.Node], Any] | None
) -> Callable[[fx.Node], Any]:
    """Convert one of Python's operators, also on numbers that loops hold as tensors.

    Parameters
    ----------
    importer : Importer
        Of the program.
    name : str
        Of the operator.
    convert : callable or None
        TVM's converter, for extents; None of an operator whose results are no integers.
    """

    def converted(node: fx.Node) -> Any:
        values = [importer._retrieve_args(value) for value in node.args]
        if all(isinstance(value, bool | int | float) for value in values):
            return node.target(*values)
        is_tensor = any(isinstance(getattr(v, "ty", None), relax.TensorType) for v in values)
        if convert is not None and not is_tensor:
            return convert(node)
        tensors = [as_tensor(importer, value) for value in values]
        emit = importer.block_builder.emit
        if name in _REAL or len({dtype_of(x) for x in tensors}) > 1:
            tensors = [emit(op.astype(x, "float64")) for x in tensors]
        return emit({**_TENSORS, **_REAL}[name](*tensors))

    return converted
