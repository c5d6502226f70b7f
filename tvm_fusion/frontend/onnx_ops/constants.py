"""Constants in all forms, and identity matrices."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import helper
from tvm import relax

from ..registry import Unsupported
from .node import Node
from .registry import register


def _not_dense(node: onnx.NodeProto) -> Unsupported | None:
    if any(a.name.startswith(("sparse", "value_string")) for a in node.attribute):
        return Unsupported("that is sparse or a string", "store it as a dense tensor of numbers")
    return None


@register("Constant", refuses=_not_dense)
def constant(node: Node) -> Any:
    """Convert Constant given as numbers or lists; tensors are left to TVM."""
    for name, dtype in (
        ("value_float", "float32"),
        ("value_floats", "float32"),
        ("value_int", "int64"),
        ("value_ints", "int64"),
    ):
        value = node.attribute(name)
        if value is not None:
            return relax.const(np.array(value, dtype), dtype)
    return None


@register("EyeLike")
def eye_like(node: Node) -> Any:
    """Convert EyeLike, whose type may differ from its input's."""
    wanted = node.attribute("dtype")
    dtype = helper.tensor_dtype_to_np_dtype(wanted).name if wanted else node.dtype()
    rows, columns = node.shape()
    return relax.op.eye(rows, columns, node.attribute("k", 0), dtype)
