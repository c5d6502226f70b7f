"""Clamp the limits of integer clips to the range of their dtype."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tvm import relax, tirx

from ..tensor_types import dtype_of
from .engine import Scope, op_name, rewrite_pass


@rewrite_pass
def ClipIntegers(value: Any, scope: Scope) -> Any:
    """``clip(i, 0, inf)`` becomes ``maximum(i, 0)``; limits that the type cannot hold are dropped.

    Importers write an open end as infinity, which TVM 0.27 cannot make an integer of.
    """
    if op_name(value) != "relax.clip" or not isinstance(value.ty, relax.TensorType):
        return None
    dtype = dtype_of(value)
    ends = [end for end in map(_number, value.args[1:]) if end is not None and end == end]
    if not dtype.startswith(("int", "uint")) or len(ends) < 2:
        return None
    least, most = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    low, high = (_whole(end, up, least, most) for end, up in zip(ends, (True, False), strict=True))
    if (low, high) == (least, most):
        return value.args[0]
    if high == most:
        return relax.op.maximum(value.args[0], relax.const(np.array(low, dtype), dtype))
    if low == least:
        return relax.op.minimum(value.args[0], relax.const(np.array(high, dtype), dtype))
    if ends == [low, high] and all(isinstance(end, int) for end in ends):
        return None
    limits = [relax.prim_value(tirx.IntImm(dtype, end)) for end in (low, high)]
    return relax.op.clip(value.args[0], *limits)


def _number(end: Any) -> float | int | None:
    if isinstance(end, tirx.IntImm):
        return int(end.value)
    return float(end.value) if isinstance(end, tirx.FloatImm) else None


def _whole(end: float | int, up: bool, least: int, most: int) -> int:
    """Round a limit towards what it allows, and bring it into the type's range."""
    if isinstance(end, float) and math.isinf(end):
        return most if end > 0 else least
    whole = end if isinstance(end, int) else (math.ceil(end) if up else math.floor(end))
    return min(max(whole, least), most)
