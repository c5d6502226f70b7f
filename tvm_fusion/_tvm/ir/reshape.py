"""Reshapes as TVM 0.27 recognises them, which fails on some over symbolic and over large extents.

Its analysis pads divisions, and stops with an internal error where it cannot prove that the padding
fits, as of ``(6 * n + 18)`` by ``n + 3``. It counts in int32: 2 ** 31 elements are an error.
"""

import functools

import tvm
from tvm import relax, tirx


@functools.lru_cache(maxsize=4096)
def is_reshape(func: tirx.PrimFunc) -> bool:
    """Whether a PrimFunc over SBlocks is known to be a reshape; one not analysed is none."""
    try:
        return relax.analysis.has_reshape_pattern(func)
    # guard: what is no view is copied, which is right
    except (tvm.error.InternalError, ValueError):
        return False
