"""Fold nodes over small constants with onnx's reference implementation.

Exporters compute shapes with dozens of operators. What TVM's importer does not fold would become a
shape that is known only at run time, and every kernel behind it would be general.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from tvm import relax
from tvm.ir import GenericConst

from ..shape_values.arrays import DTYPES, LARGEST
from ..shape_values.reference import run_node

_OPERATORS = {
    *("Abs", "Add", "And", "ArgMax", "ArgMin", "Cast", "CastLike", "Ceil", "Compress", "Concat"),
    *("ConstantOfShape", "CumSum", "Div", "Equal", "Expand", "Flatten", "Floor", "Gather"),
    *("GatherElements", "GatherND", "Greater", "GreaterOrEqual", "Identity", "Less", "LessOrEqual"),
    *("Max", "Min", "Mod", "Mul", "Neg", "NonZero", "Not", "Or", "Pad", "Pow", "Range"),
    *("Reciprocal", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "Reshape"),
    *("Round", "ScatterElements", "ScatterND", "Shape", "Sign", "Size", "Slice", "Split", "Sqrt"),
    *("Squeeze", "Sub", "Tile", "Transpose", "Trilu", "Unsqueeze", "Where", "Xor"),
}


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
        results = run_node(node, arrays, opset)
    except Exception:  # guard: what cannot be folded is converted as any other node
        return None
    if any(r.size > LARGEST or r.dtype.name not in DTYPES for r in results):
        return None
    constants = iter([relax.const(result, result.dtype.name) for result in results])
    return [next(constants) if name else None for name in node.output]


def _is_small(value: Any) -> bool:
    if not isinstance(value, GenericConst):
        return False
    array = value.value
    return int(np.prod(array.shape)) <= LARGEST and str(array.dtype) in DTYPES
