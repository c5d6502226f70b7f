"""Matrices in the registers of lanes, as a row's layouts tell it."""

import ml_dtypes
import numpy as np


def np_dtype(name):
    return np.dtype(getattr(ml_dtypes, name, name))


def name_of(row):
    return f"{row.name} {row.kind}"


def basis(rows, columns):
    """Numbers that differ everywhere: a layout that mixes two of them up is seen."""
    return np.arange(1, rows * columns + 1).reshape(rows, columns)


def drawn(rng, dtype, shape):
    """Small integers, of which every sum of products is exact."""
    return rng.integers(0 if dtype == "uint8" else -3, 4, shape).astype(np_dtype(dtype))


def held(layout, matrix):
    """The registers ``[lane, register]`` that hold a matrix."""
    shape = layout.lane_count, layout.per_lane
    row, column = (np.broadcast_to(x, shape) for x in layout.place(*np.indices(shape)))
    return matrix[row, column]
