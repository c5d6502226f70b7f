"""Gathers, scatters, sorting: positions that depend on data."""

from typing import Any

import numpy as np
from tvm import relax, tirx

from .operator import Operator
from .reductions import gap_along

R = relax.op


def _move(name: str, build: Any, reference: Any) -> Operator:
    return Operator(name, build, reference, exact=True)


def _gather_nd(x: Any, indices: Any) -> Any:
    return x[tuple(np.moveaxis(indices, -1, 0))]


def _scatter_elements(x: Any, indices: Any, updates: Any, axis: int) -> Any:
    result = x.copy()
    np.put_along_axis(result, indices, updates, axis)
    return result


def _scatter_nd(x: Any, indices: Any, updates: Any) -> Any:
    result = x.copy()
    result[tuple(np.moveaxis(indices, -1, 0))] = updates
    return result


def _slice_scatter(x: Any, source: Any, start: int, end: int, step: int, axis: int) -> Any:
    result = x.copy()
    index = [slice(None)] * x.ndim
    index[axis] = slice(start, end, step)
    result[tuple(index)] = source
    return result


def _one_hot(indices: Any, depth: int, axis: int, dtype: str) -> Any:
    hot = (indices[..., None] == np.arange(depth)).astype(dtype)
    return np.moveaxis(hot, -1, axis) if axis >= 0 else hot


def _one_hot_build(indices: Any, depth: int, axis: int, dtype: str) -> Any:
    on, off = (relax.prim_value(_immediate(v, dtype)) for v in (1, 0))
    return R.one_hot(indices, on, off, depth, axis)


def _immediate(value: int, dtype: str) -> Any:
    return tirx.IntImm(dtype, value) if dtype.startswith("int") else tirx.FloatImm(dtype, value)


def _order(x: Any, axis: int, descending: bool) -> Any:
    if not descending:
        return np.argsort(x, axis=axis, kind="stable")
    return np.lexsort((-x, ~np.isnan(x)), axis=axis)  # NaN is the largest of all


def _sort(x: Any, axis: int, descending: bool) -> Any:
    return np.take_along_axis(x, _order(x, axis, descending), axis)


def _topk(x: Any, k: int, axis: int, largest: bool) -> list[Any]:
    order = np.take(_order(x, axis, largest), range(k), axis=axis)
    return [np.take_along_axis(x, order, axis), order]


def _gap(x: Any, axis: int, **_: Any) -> Any:
    return gap_along(x, axis)


def _reverse_sequence(x: Any, lengths: Any, seq_axis: int, batch_axis: int) -> Any:
    result = np.moveaxis(x, (batch_axis, seq_axis), (0, 1)).copy()
    for row, length in zip(result, lengths, strict=True):
        row[:length] = row[:length][::-1].copy()
    return np.moveaxis(result, (0, 1), (batch_axis, seq_axis))


OPERATORS = [
    _move(
        "take",
        lambda x, indices, axis, mode: R.take(x, indices, axis, mode),
        lambda x, indices, axis, mode: np.take(x, indices, axis),
    ),
    _move(
        "gather_elements",
        lambda x, indices, axis: R.gather_elements(x, indices, axis),
        lambda x, indices, axis: np.take_along_axis(x, indices, axis),
    ),
    _move("gather_nd", R.gather_nd, _gather_nd),
    _move(
        "index_tensor",
        lambda x, *indices: R.index_tensor(x, list(indices)),
        lambda x, *indices: x[indices],
    ),
    _move(
        "scatter_elements",
        lambda x, indices, updates, axis: R.scatter_elements(x, indices, updates, axis),
        _scatter_elements,
    ),
    _move("scatter_nd", R.scatter_nd, _scatter_nd),
    _move(
        "slice_scatter",
        lambda x, source, start, end, step, axis: R.slice_scatter(
            x, source, start, end, step, axis
        ),
        _slice_scatter,
    ),
    _move("one_hot", _one_hot_build, _one_hot),
    _move(
        "reverse_sequence",
        lambda x, lengths, seq_axis, batch_axis: R.reverse_sequence(
            x, lengths, seq_axis, batch_axis
        ),
        _reverse_sequence,
    ),
    Operator("sort", lambda x, axis, descending: R.sort(x, axis, descending), _sort, exact=True),
    Operator(
        "argsort",
        lambda x, axis, descending: R.argsort(x, axis, descending, "int32"),
        _order,
        _gap,
        exact=True,
    ),
    Operator(
        "topk",
        lambda x, k, axis, largest: R.topk(x, k, axis, "both", largest, "int32"),
        _topk,
        _gap,
        exact=True,
    ),
]
