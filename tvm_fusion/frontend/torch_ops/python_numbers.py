"""Numbers of Python in torch's graph, which loops hold as tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import fx
from tvm import relax
from tvm.ir import is_prim_expr

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
    importer: Any, name: str, convert: Callable[[fx.Node], Any]
) -> Callable[[fx.Node], Any]:
    """Convert one of Python's operators, also on numbers that loops hold as tensors.

    Parameters
    ----------
    importer : Importer
        Of the program.
    name : str
        Of the operator.
    convert : callable
        TVM's converter, for extents.
    """

    def converted(node: fx.Node) -> Any:
        values = [importer._retrieve_args(value) for value in node.args]
        if all(isinstance(value, bool | int | float) for value in values):
            return node.target(*values)
        if not any(isinstance(getattr(v, "ty", None), relax.TensorType) for v in values):
            return convert(node)
        tensors = [as_tensor(importer, value) for value in values]
        return importer.block_builder.emit(_TENSORS[name](*tensors))

    return converted
