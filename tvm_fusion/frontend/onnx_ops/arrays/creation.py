"""Convert Constant, ConstantOfShape, EyeLike and Range."""

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from tvm import relax, tirx
from tvm.ir import GenericConst

from ....core.constants.narrow_types import NARROW, STORAGE
from ...onnx_model.types import dtype_name
from ...registry import Unsupported
from ...shape_values import Facts, SymbolicArray
from ...shape_values.elements import Unknown, real, rounded, to_integer
from ...shape_values.facts import as_expr
from ..node import Node
from ..registry import register

op = relax.op


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
    return op.eye(rows, columns, node.attribute("k", 0), dtype)


@register("Range", takes_extents=True)
def range_of_extents(node: Node) -> Any:
    """Convert Range over symbolic extents to ``relax.arange``, of a length that is an expression.

    TVM's importer gives the result a new length, unrelated to the extents that it was made of, and
    then cannot add a mask of that length to scores. Values that are known only at run time, and
    lengths that depend on how floating point rounds, are left to it.
    """
    if len(node.known) != 3 or all(known is None or known.is_constant for known in node.known):
        return None
    arrays = [known for known in node.known if known is not None]
    if len(arrays) != 3 or any(array.elements.size != 1 for array in arrays):
        return None
    dtype, facts = arrays[0].dtype, node.facts
    start, limit, delta = (array.elements.item() for array in arrays)
    try:
        count = _steps(facts, dtype, start, limit, delta)
    except Unknown:
        return None
    if dtype == "int64" and isinstance(delta, int) and delta == 1:
        return op.arange(start, facts.simplify(start + count), 1, "int64")
    positions = node.emit(node.cast(op.arange(0, count, 1, "int64"), dtype))
    first, step = (_scalar(node, array) for array in (arrays[0], arrays[2]))
    return op.add(node.emit(op.multiply(positions, step)), first)


def _steps(facts: Facts, dtype: str, start: Any, limit: Any, delta: Any) -> Any:
    """Return how many steps lead from the start to the limit, at least 0, rounded up."""
    if "float" in dtype:
        # The difference in the type of the values, the quotient in float64, as in ONNX Runtime.
        span, step = real("Sub", facts, limit, start), real("Add", facts, delta, np.float64(0))
        span, step = (replace(x, run=_in_float64(x.run)) for x in (span, step))
        count = to_integer(facts, rounded("Ceil", facts, real("Div", facts, span, step)))
    elif facts.proves(as_expr(delta) > 0):
        count = tirx.floordiv(as_expr(limit - start + delta - 1), as_expr(delta))
    elif facts.proves(as_expr(delta) < 0):
        count = tirx.floordiv(as_expr(start - limit - delta - 1), as_expr(0 - delta))
    else:
        raise Unknown
    return facts.larger(facts.simplify(count), 0)


def _in_float64(run: Any) -> Any:
    return lambda extents: np.asarray(run(extents), "float64")


def _scalar(node: Node, array: SymbolicArray) -> Any:
    return node.emit(op.reshape(array.tensor(node.builder), ()))
