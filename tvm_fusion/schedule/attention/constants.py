"""Constants in the expressions of a pattern: numbers, and positions that were stored as tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from tvm import ir, tirx

from ...core.expressions import map_loads
from ...core.loops import index
from ...program.group import Group
from .pattern import Pattern

MAX_POSITIONS = 1 << 17  # elements of a constant that are looked at


def with_constants(pattern: Pattern, group: Group) -> Pattern:
    """Write constants of a group into the score: scalars, and arithmetic sequences (``arange``).

    Parameters
    ----------
    pattern : Pattern
        The attention of a group.
    group : Group
        Whose inputs may be constants.
    """
    known: dict[ir.Var, np.ndarray] = {}
    for buffer, value in zip(group.program.inputs, group.inputs, strict=True):
        if value.constant is not None and _is_small(buffer):
            known[buffer] = value.constant.value.numpy()
    if not known:
        return pattern

    def known_value(load: ir.TensorLoad) -> ir.Expr:
        return _value(load, known)

    return replace(
        pattern,
        score=map_loads(pattern.score, known_value),
        weight=map_loads(pattern.weight, known_value),
    )


def _is_small(buffer: ir.Var) -> bool:
    total = 1
    for extent in buffer.ty.shape:
        if not isinstance(extent, tirx.IntImm):
            return False
        total *= int(extent)
    return total <= MAX_POSITIONS


def _value(load: ir.TensorLoad, known: Mapping[ir.Var, np.ndarray]) -> ir.Expr:
    data, dtype = known.get(load.source), str(load.ty.dtype)
    if data is None:
        return load
    if data.size == 1:
        return tirx.const(data.reshape(-1)[0].item(), dtype)
    along = [i for i, extent in enumerate(data.shape) if extent > 1]
    if len(along) != 1 or data.dtype.kind not in "iu":
        return load
    flat = data.reshape(-1).astype("int64")
    step = int(flat[1] - flat[0])
    if not (flat == flat[0] + step * np.arange(len(flat))).all():
        return load
    position = index(load.indices[along[0]])
    return tirx.Cast(dtype, position * step + int(flat[0]))
