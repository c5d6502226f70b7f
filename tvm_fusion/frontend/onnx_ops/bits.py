"""Convert BitCast."""

from __future__ import annotations

from typing import Any

from onnx import helper
from tvm import DataType, relax, te, tirx

from ..registry import Unsupported
from ..tensor_types import is_integer
from .node import Node
from .registry import register


@register("BitCast")
def bit_cast(node: Node) -> Any:
    """Convert BitCast between types of the same width."""
    to = helper.tensor_dtype_to_np_dtype(node.attribute("to")).name
    dtype, x = node.dtype(), node.inputs[0]
    if dtype == to:
        return x
    if to == "bool":
        raise Unsupported("to bool", "compare with zero")
    if dtype == "bool":
        return relax.op.astype(x, to)
    if DataType(dtype).bits != DataType(to).bits:
        raise Unsupported(f"of {dtype} to {to}", "cast between types of one width")
    if is_integer(dtype) and is_integer(to):
        return relax.op.astype(x, to)  # keeps the bits

    def reinterpret(data: te.Tensor) -> te.Tensor:
        return te.compute(data.shape, lambda *at: tirx.reinterpret(to, data(*at)), name="bitcast")

    return node.emit_te(reinterpret, x, primfunc_name_hint="bitcast")
