"""Range over extents, whose length TVM's importer loses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.ir import GenericConst

from ...signature import DimRange
from .node import Node
from .registry import register


@register("Range", takes_extents=True)
def convert(node: Node) -> Any:
    """Convert Range; see :func:`convert_range`."""
    return convert_range(node.inputs, node.ranges)


def convert_range(inputs: Any, ranges: Mapping[Any, DimRange]) -> Any:
    """Convert Range over extents to ``relax.arange``, whose length stays an expression over them.

    TVM's importer gives the result a new length, unrelated to the extents that it was made of, and
    then cannot add a mask of that length to scores.

    Parameters
    ----------
    inputs : sequence
        Start, limit and delta as the importer holds them.
    ranges : mapping of tvm.tirx.Var to DimRange
        What is known about the symbolic dimensions.

    Returns
    -------
    tvm.relax.Call or None
        None where it does not apply: values that are not extents, a delta other than one, or a
        length that might be negative.
    """
    start, limit, delta = (_integer(x) for x in inputs)
    if start is None or limit is None or not isinstance(delta, int) or delta != 1:
        return None
    if isinstance(start, int) and isinstance(limit, int):
        return None
    analyzer = tvm.sym.Analyzer()
    for var, bounds in ranges.items():
        analyzer.bind(var, tvm.ir.Range(bounds.low, bounds.high + 1))
    if not analyzer.can_prove(limit - start >= 0):
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
