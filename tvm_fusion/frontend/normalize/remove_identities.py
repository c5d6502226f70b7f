"""Remove operators that return their operand unchanged."""

from __future__ import annotations

from typing import Any

from tvm import relax
from tvm_ffi import structural_equal

from .engine import Scope, op_name, rewrite_pass

# Equal types mean equal tensors for these.
_BY_TYPE = ("relax.astype", "relax.reshape", "relax.broadcast_to", "relax.squeeze", "relax.flatten")


@rewrite_pass
def RemoveIdentities(value: Any, scope: Scope) -> Any:
    """Drop casts, reshapes and broadcasts to the type a tensor has already, and dropout."""
    if isinstance(value, relax.TupleGetItem) and value.index == 0:
        dropout = scope.call(value.tuple_value, "relax.nn.dropout")
        return None if dropout is None else dropout.args[0]
    name = op_name(value)
    if name == "relax.permute_dims":
        axes = value.attrs.axes
        if axes is not None and [int(axis) for axis in axes] == list(range(len(axes))):
            return value.args[0]
    elif name in _BY_TYPE and structural_equal(value.args[0].ty, value.ty):
        return value.args[0]
    return None
