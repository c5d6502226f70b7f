"""Extrema of whole tensors on a GPU: first of each row, then of what the rows gave.

A reduction is one block's for each of its results, so that of a whole tensor is one block's alone:
half a megabyte in float16 takes it some 40 us. In two steps all multiprocessors take part. Extrema
are exact in any order; sums are not and stay.

    max(x[a, b, c]):  rows[a, b] = max over c of x[a, b, c];  max over a, b of rows[a, b]
"""

from __future__ import annotations

import math
from typing import Any

from tvm import relax, tirx
from tvm.target import Target

from ..frontend.normalize.engine import Scope, op_name, rewrite_pass

OPERATORS = {"relax.max": relax.op.max, "relax.min": relax.op.min}
MIN_TERMS = 1 << 14  # of a result: 16 loads for each thread of a block, as long as two launches
MIN_ROW = 32  # terms of a row, one for each thread of a warp
MAX_RESULTS = 8


@rewrite_pass
def SplitLongExtrema(value: Any, scope: Scope) -> Any:
    """Reduce the last axis first where few results have many terms each, on GPUs."""
    target = Target.current(allow_none=True)
    reduce = OPERATORS.get(op_name(value))
    if reduce is None or target is None or target.kind.name not in ("cuda", "rocm"):
        return None
    x, attrs = value.args[0], value.attrs
    shape = x.ty.shape
    if not isinstance(shape, relax.ShapeExpr) or not all(_is_known(e) for e in shape.values):
        return None
    extents = [int(extent) for extent in shape.values]
    rank = len(extents)
    axes = range(rank) if attrs.axis is None else {int(axis) % rank for axis in attrs.axis}
    terms = math.prod(extents[axis] for axis in axes)
    if rank - 1 not in axes or terms < MIN_TERMS or math.prod(extents) > MAX_RESULTS * terms:
        return None
    if extents[-1] < MIN_ROW or extents[-1] == terms:
        return None
    rows = scope.emit(reduce(x, [rank - 1], keepdims=True))
    return reduce(rows, sorted(axes), keepdims=bool(attrs.keepdims))


def _is_known(extent: Any) -> bool:
    return isinstance(extent, tirx.IntImm)
