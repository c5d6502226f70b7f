"""Index maps evaluated for every element of an output: exact where algebra finds no proof."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm_ffi
from tvm import ir, tirx

from .evaluate import evaluate
from .inverse import is_int
from .loads import variables_of
from .table import MappingType

_MOST_POINTS = 2_000_000  # output elements times index maps: about a second
# Values that symbolic dimensions take in turn. A verdict counts if two of them agree.
_SYMBOL_VALUES = ((5, 7, 3, 6), (4, 9, 6, 5), (24, 18, 20, 15), (33, 40, 27, 36))
_INSTANCES = 2


class Undecided(Exception):
    """Enumeration gives no verdict; the message says why."""


@dataclass(frozen=True)
class IndexMap:
    """Which element of an input an output element reads, and where it reads it."""

    indices: tuple[ir.Expr, ...]  # expressions over the output's dimensions
    # The element is read where all conditions of one alternative hold; no alternative means
    # everywhere.
    alternatives: tuple[tuple[ir.Expr, ...], ...] = ()


@dataclass(frozen=True)
class Problem:
    """All index maps from one output to one input."""

    maps: tuple[IndexMap, ...]  # pairwise different
    # The output's dimensions and their extents.
    dims: tuple[ir.Var, ...]
    out_shape: tuple[ir.Expr, ...]
    in_shape: tuple[ir.Expr, ...]  # extents of the input


def enumerate_type(problem: Problem, same_shape: bool) -> MappingType:
    """Classify by evaluating every map at every output element.

    Parameters
    ----------
    same_shape
        Whether input and output have the same shape, which tells One-to-One from Reorganize.

    Returns
    -------
    MappingType
        The class; for symbolic shapes the one that two instantiations agree on.

    Raises
    ------
    Undecided
        If there are too many elements, or instantiations disagree or leave the input's bounds.
    Unreadable
        If an index contains a function that has no known value.
    """
    problem = _shrink(problem)
    exprs = [expr for m in problem.maps for group in (m.indices, *m.alternatives) for expr in group]
    symbols = sorted(
        variables_of(*problem.out_shape, *problem.in_shape, *exprs) - set(problem.dims),
        key=lambda var: var.name,
    )
    verdicts = []
    for values in _SYMBOL_VALUES if symbols else ((),):
        env = {var: np.int64(values[k % len(values)]) for k, var in enumerate(symbols)}
        verdict = _instance(problem, env, same_shape)
        if verdict is not None:
            verdicts.append(verdict)
        if len(verdicts) == _INSTANCES:
            break
    if len(verdicts) < (_INSTANCES if symbols else 1):
        raise Undecided("an index leaves the bounds of the input")
    if len(set(verdicts)) > 1:
        raise Undecided("the class depends on the values of symbolic dimensions")
    return verdicts[0]


def _shrink(problem: Problem) -> Problem:
    """Cut dimensions that every map passes on unchanged to two elements: the class is the same."""
    out_shape, in_shape = list(problem.out_shape), list(problem.in_shape)
    for position, dim in enumerate(problem.dims):
        places = {_only_place(m, dim) for m in problem.maps}
        place = places.pop()
        if places or place is None or is_int(out_shape[position], 1):
            continue
        extent = out_shape[position]
        if tvm_ffi.structural_equal(extent, in_shape[place]):
            two = tirx.IntImm(extent.ty.dtype, 2)
            out_shape[position] = in_shape[place] = two
    return Problem(problem.maps, problem.dims, tuple(out_shape), tuple(in_shape))


def _only_place(index_map: IndexMap, dim: ir.Var) -> int | None:
    """Return the one index that is `dim`; None if `dim` occurs anywhere else or nowhere."""
    places = [k for k, index in enumerate(index_map.indices) if dim in variables_of(index)]
    conditions = [c for alternative in index_map.alternatives for c in alternative]
    if len(places) != 1 or dim in variables_of(*conditions):
        return None
    return places[0] if index_map.indices[places[0]].same_as(dim) else None


def _instance(
    problem: Problem, symbols: Mapping[ir.Var, Any], same_shape: bool
) -> MappingType | None:
    """Classify with all symbols given; None if that leaves the input's bounds."""
    out_shape = [int(evaluate(extent, symbols)) for extent in problem.out_shape]
    in_shape = [int(evaluate(extent, symbols)) for extent in problem.in_shape]
    if min([*out_shape, *in_shape], default=1) < 1:
        return None
    points = int(np.prod(out_shape, dtype=np.int64))
    if points * len(problem.maps) > _MOST_POINTS:
        raise Undecided("too large to enumerate")
    grid = np.indices(out_shape).reshape(len(out_shape), -1)
    env = {**symbols, **dict(zip(problem.dims, grid, strict=True))}
    read = np.full(points, -1, np.int64)  # row-major position in the input, -1: nothing
    several = False
    for index_map in problem.maps:
        position = np.zeros(points, np.int64)
        where = _where(index_map, env, points)
        for index, extent in zip(index_map.indices, in_shape, strict=True):
            value = np.broadcast_to(evaluate(index, env), points).astype(np.int64)
            if np.any(where & ((value < 0) | (value >= extent))):
                return None
            position = position * extent + value
        several |= bool(np.any(where & (read >= 0) & (read != position)))
        read = np.where(where, position, read)
    size = int(np.prod(in_shape, dtype=np.int64))
    return MappingType.MANY_TO_MANY if several else _class_of(read, size, same_shape)


def _where(index_map: IndexMap, env: Mapping[ir.Var, Any], points: int) -> np.ndarray:
    if not index_map.alternatives:
        return np.ones(points, bool)
    where = np.zeros(points, bool)
    for alternative in index_map.alternatives:
        holds = np.ones(points, bool)
        for condition in alternative:
            holds &= np.broadcast_to(evaluate(condition, env), points).astype(bool)
        where |= holds
    return where


def _class_of(read: np.ndarray, size: int, same_shape: bool) -> MappingType:
    used = read[read >= 0]
    if used.size and np.bincount(used).max() > 1:
        return MappingType.ONE_TO_MANY
    if not used.size == read.size == size:
        return MappingType.ONE_TO_ONE  # part of the input
    if not np.array_equal(read, np.arange(size)):
        return MappingType.SHUFFLE
    return MappingType.ONE_TO_ONE if same_shape else MappingType.REORGANIZE
