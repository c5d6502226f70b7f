"""Copies of arrays in C order, in blocks and on all cores."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np

# Elements of a block, across and along the lines of the result: its lines of memory on both sides
# stay in the cache while they are used.
_ACROSS, _ALONG = 64, 256
_LARGE = 1 << 20  # bytes from which blocks pay
_PANEL = 1 << 22  # bytes for each thread, at least


def contiguous(array: np.ndarray) -> np.ndarray:
    """Return an array in C order: numpy's own copy of a large transposed one misses the cache.

    Parameters
    ----------
    array
        With any strides.

    Returns
    -------
    numpy.ndarray
        The same object where it is in C order; of a scalar an array with one axis, as numpy does.
    """
    if array.nbytes < _LARGE or array.ndim < 2 or array.flags.c_contiguous:
        return np.ascontiguousarray(array)
    strides = [abs(stride) if extent > 1 else array.nbytes for stride, extent in _axes(array)]
    axis = int(np.argmin(strides))
    if axis == array.ndim - 1 or strides[axis] != array.itemsize:
        return np.ascontiguousarray(array)
    result = np.empty(array.shape, array.dtype)
    to, given = (np.moveaxis(a, axis, -2) for a in (result, array))
    starts = range(0, to.shape[-2], _ACROSS)

    def copy(start: int) -> None:
        rows = slice(start, start + _ACROSS)
        for column in range(0, to.shape[-1], _ALONG):
            columns = slice(column, column + _ALONG)
            to[..., rows, columns] = given[..., rows, columns]

    threads = min(len(os.sched_getaffinity(0)), array.nbytes // _PANEL)
    if threads > 1:
        with ThreadPoolExecutor(threads) as pool:  # numpy copies without Python's lock
            list(pool.map(copy, starts))
    else:
        for start in starts:
            copy(start)
    return result


def _axes(array: np.ndarray) -> zip[tuple[int, int]]:
    return zip(array.strides, array.shape, strict=True)
