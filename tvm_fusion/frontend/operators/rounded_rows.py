"""Rows rounded to int8 in blocks, each with a scale: activations for weights in blocks."""

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax

op = relax.op
_LARGEST = 127  # of int8

Emit = Callable[[Any], relax.Var]


def rounded_rows(emit: Emit, x: relax.Var, size: int) -> tuple[relax.Var, relax.Var]:
    """Round rows to int8, block by block: the largest magnitude of a block becomes 127.

    Parameters
    ----------
    x
        Of a floating type; its last extent is a multiple of ``size``.
    size
        Elements of a block.

    Returns
    -------
    numbers, scales : Var
        int8 of x's shape with the last axis split into blocks, and float32 of one element a block.
    """
    *rows, terms = list(x.ty.shape)
    blocks = emit(op.reshape(x, [*rows, terms // size, size]))
    if str(x.ty.dtype.dtype) != "float32":
        blocks = emit(op.astype(blocks, "float32"))
    largest = emit(op.max(emit(op.abs(blocks)), -1, keepdims=True))
    scales = emit(op.multiply(largest, relax.const(1 / _LARGEST, "float32")))
    # A block of zeros has the scale 0: any other divisor gives zeros as well.
    least = relax.const(np.finfo("float32").tiny, "float32")
    steps = emit(op.divide(blocks, emit(op.maximum(scales, least))))
    return emit(op.astype(emit(op.round(steps)), "int8")), scales


def widened_rows(emit: Emit, numbers: relax.Var, scales: relax.Var, like: relax.Var) -> relax.Var:
    """Scale rounded rows back to the shape and type of what was rounded."""
    wide = emit(op.multiply(emit(op.astype(numbers, "float32")), scales))
    wide = emit(op.reshape(wide, list(like.ty.shape)))
    dtype = str(like.ty.dtype.dtype)
    return wide if dtype == "float32" else emit(op.astype(wide, dtype))
