"""Convert Constant, ConstantOfShape, EyeLike and Range."""

from typing import Any

import numpy as np
import onnx
import tvm
from onnx import helper, numpy_helper
from tvm import relax, tirx
from tvm.ir import GenericConst

from ....core.constants.narrow_types import NARROW, STORAGE
from ...onnx_model.types import dtype_name
from ...registry import Unsupported
from ..node import Node
from ..registry import register


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
    tensor = node.attribute("value")
    if tensor is not None and dtype_name(tensor.data_type) in NARROW:
        return relax.const(numpy_helper.to_array(tensor).view(STORAGE), STORAGE)
    return None


@register("ConstantOfShape", takes_extents=True)
def constant_of_shape(node: Node) -> Any:
    """Convert ConstantOfShape of a computed shape as Expand does it; others are left to TVM."""
    shape = node.inputs[0]
    if isinstance(shape, GenericConst) or not isinstance(shape.ty, relax.TensorType):
        return None
    value = node.attribute("value")
    array = np.zeros(1, "float32") if value is None else numpy_helper.to_array(value)
    return node.apply("Expand", relax.const(array, array.dtype.name), shape)


@register("EyeLike")
def eye_like(node: Node) -> Any:
    """Convert EyeLike, whose type may differ from its input's."""
    wanted = node.attribute("dtype")
    dtype = helper.tensor_dtype_to_np_dtype(wanted).name if wanted else node.dtype()
    rows, columns = node.shape()
    return relax.op.eye(rows, columns, node.attribute("k", 0), dtype)


@register("Range", takes_extents=True)
def range_of_extents(node: Node) -> Any:
    """Convert Range over symbolic extents to ``relax.arange``, of a length that is an expression.

    TVM's importer gives the result a new length, unrelated to the extents that it was made of, and
    then cannot add a mask of that length to scores. Left to TVM: values that are not extents, a
    delta other than one, and a length that might be negative.
    """
    start, limit, delta = (_integer(x) for x in node.inputs)
    if start is None or limit is None or not isinstance(delta, int) or delta != 1:
        return None
    if isinstance(start, int) and isinstance(limit, int):
        return None
    if not node.facts.proves(limit - start >= 0):
        return None
    return relax.op.arange(start, limit, 1, "int64")


def _integer(value: Any) -> Any:
    """Return an int64 scalar as an int or a TIR expression, None for anything else."""
    if isinstance(value, GenericConst):
        array = value.value.numpy()
        return int(array.item()) if array.size == 1 and array.dtype == "int64" else None
    if isinstance(value, relax.ShapeExpr):
        return value[0] if len(value) == 1 else None
    if tvm.ir.is_prim_expr(value) and not isinstance(value, tirx.FloatImm):
        return value
    return None
