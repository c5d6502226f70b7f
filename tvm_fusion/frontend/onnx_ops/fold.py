"""Fold nodes over small constants with onnx's reference implementation.

Exporters compute shapes with dozens of operators. What TVM's importer does not fold would become a
shape that is known only at run time, and every kernel behind it would be general.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from tvm import relax
from tvm.ir import GenericConst

# Elements of an input or a result; shapes, axes and scalars are far below.
LARGEST = 256
_OPERATORS = {
    *("Abs", "Add", "And", "Cast", "CastLike", "Ceil", "Concat", "ConstantOfShape", "Div", "Equal"),
    *("Expand", "Floor", "Gather", "GatherElements", "GatherND", "Greater", "GreaterOrEqual"),
    *("Identity", "Less", "LessOrEqual", "Max", "Min", "Mod", "Mul", "Neg", "Not", "Or", "Range"),
    *("Reciprocal", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceSum", "Reshape"),
    *("ScatterElements", "ScatterND", "Size", "Slice", "Split", "Sqrt", "Squeeze", "Sub", "Tile"),
    *("Transpose", "Unsqueeze", "Where"),
}
_DTYPES = {"bool", "int32", "int64", "float32", "float64"}


def fold(node: onnx.NodeProto, inputs: Sequence[Any], opset: int) -> list[Any] | None:
    """Evaluate a node.

    Parameters
    ----------
    node : onnx.NodeProto
        A node of ONNX's own domain.
    inputs : sequence
        Expressions; None for an input that is left out.
    opset : int
        Version of the standard operators.

    Returns
    -------
    list of tvm.ir.GenericConst or None
        None where an input is no small constant, or the operator is not one of those folded.
    """
    if node.op_type not in _OPERATORS or node.domain not in ("", "ai.onnx") or not inputs:
        return None
    given = [value for value in inputs if value is not None]
    if not given or not all(map(_is_small, given)):
        return None
    arrays = [value.value.numpy() for value in given]
    try:
        results = evaluate(node, arrays, opset)
    except Exception:  # guard: what cannot be folded is converted as any other node
        return None
    if any(r.size > LARGEST or r.dtype.name not in _DTYPES for r in results):
        return None
    constants = iter([relax.const(result, result.dtype.name) for result in results])
    return [next(constants) if name else None for name in node.output]


def evaluate(node: onnx.NodeProto, arrays: Sequence[np.ndarray], opset: int) -> list[np.ndarray]:
    """Run a node of ONNX's own domain by onnx's reference implementation.

    Parameters
    ----------
    node : onnx.NodeProto
        The node.
    arrays : sequence of numpy.ndarray
        Its inputs that are not left out.
    opset : int
        Version of the standard operators.
    """
    from onnx.reference import ReferenceEvaluator  # whose import takes a while; few models need it

    names = [name for name in node.input if name]
    stored = [
        numpy_helper.from_array(array, name)
        for name, array in dict(zip(names, arrays, strict=True)).items()
    ]
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    graph = helper.make_graph([node], "constant", [], outputs, stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    with np.errstate(all="ignore"):
        results: Any = ReferenceEvaluator(model).run(None, {})
    return [np.asarray(result) for result in results]


def _is_small(value: Any) -> bool:
    if not isinstance(value, GenericConst):
        return False
    array = value.value
    return int(np.prod(array.shape)) <= LARGEST and str(array.dtype) in _DTYPES
