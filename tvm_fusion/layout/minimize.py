"""Exact minimization of a sum of small tables over discrete variables.

Variable elimination (Bertelè and Brioschi, "Nonserial Dynamic Programming", 1972; the same as
bucket elimination): the tables that mention a variable are added up, the variable's best value is
kept for every choice of its neighbours, and a table over these takes their place. On a tree that is
dynamic programming; the cost is exponential in the treewidth, which is small for networks with
residual connections (3 or 4).

Where a table would become too large, as in densely connected networks, the variables with most
neighbours are fixed. Each of them is then changed while that makes the minimum over all the others,
which is still exact, smaller: the result is a local minimum in the fixed variables alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

LARGEST = 1 << 16  # entries of a table


@dataclass(frozen=True, eq=False)
class Table:
    """A term of the sum.

    Attributes
    ----------
    variables : tuple of int
        On which it depends, without duplicates.
    costs : np.ndarray
        One axis per variable; infinite where a choice is not allowed.
    """

    variables: tuple[int, ...]
    costs: np.ndarray


def minimize(
    sizes: Sequence[int], tables: Sequence[Table], starts: Sequence[Sequence[int]] = ()
) -> tuple[list[int], bool]:
    """Choose a value for every variable.

    Parameters
    ----------
    sizes : sequence of int
        How many values each variable has; 0 is the first.
    tables : sequence of Table
        Terms of the sum.
    starts : sequence of sequence of int
        Choices to begin with where some variables must be fixed; all zeros by default.

    Returns
    -------
    list of int
        Values; those of the first in order among equal ones.
    bool
        Whether they are proved to be a global minimum.
    """
    order, fixed = _order(sizes, tables)
    if not fixed:
        return _eliminate(sizes, tables, order, {})[1], True
    best: tuple[float, list[int]] | None = None
    for start in starts or [[0] * len(sizes)]:
        found = _descend(sizes, tables, order, {v: start[v] for v in fixed})
        if best is None or found[0] < best[0]:
            best = found
    assert best is not None
    return best[1], False


def total(tables: Sequence[Table], values: Sequence[int]) -> float:
    """Add up the tables at a choice of values."""
    return float(sum(t.costs[tuple(values[v] for v in t.variables)] for t in tables))


def _order(sizes: Sequence[int], tables: Sequence[Table]) -> tuple[list[int], list[int]]:
    """Order variables by their number of neighbours; name those to fix instead."""
    near: dict[int, set[int]] = {v: set() for v in range(len(sizes))}
    for table in tables:
        for v in table.variables:
            near[v].update(table.variables)
    for v, others in near.items():
        others.discard(v)
    order: list[int] = []
    fixed: list[int] = []
    while near:
        v = min(near, key=lambda v: (prod(sizes[u] for u in near[v]), v))
        if prod(sizes[u] for u in (*near[v], v)) > LARGEST:
            v = max(near, key=lambda v: (len(near[v]), -v))
            fixed.append(v)
        else:
            order.append(v)
            for u in near[v]:
                near[u].update(near[v] - {u})
        for u in near.pop(v):
            near[u].discard(v)
    return order, fixed


def _descend(
    sizes: Sequence[int], tables: Sequence[Table], order: Sequence[int], fixed: dict[int, int]
) -> tuple[float, list[int]]:
    best = _eliminate(sizes, tables, order, fixed)
    changed = True
    while changed:
        changed = False
        for v in fixed:
            for value in range(sizes[v]):
                if value == fixed[v]:
                    continue
                found = _eliminate(sizes, tables, order, {**fixed, v: value})
                if found[0] < best[0] * (1 - 1e-12):
                    best, fixed, changed = found, {**fixed, v: value}, True
    return best


def _eliminate(
    sizes: Sequence[int], tables: Sequence[Table], order: Sequence[int], fixed: dict[int, int]
) -> tuple[float, list[int]]:
    """Minimize exactly over the variables that are not fixed."""
    position = {v: k for k, v in enumerate(order)}
    left: list[list[Table]] = [[] for _ in (*order, "no variable")]  # by the first in the order

    def add(table: Table) -> None:
        left[min((position[v] for v in table.variables), default=-1)].append(table)

    for table in tables:
        add(_restricted(table, fixed))
    steps: list[tuple[int, Table]] = []
    for v in order:
        mine = left[position[v]]
        scope = tuple(dict.fromkeys(u for t in mine for u in t.variables if u != v))
        joined = np.zeros([*(sizes[u] for u in scope), sizes[v]])
        for table in mine:
            joined += _spread(table, (*scope, v))
        steps.append((v, Table(scope, joined)))
        add(Table(scope, joined.min(axis=-1)))
    values = dict(fixed)
    for v, table in reversed(steps):
        values[v] = int(table.costs[tuple(values[u] for u in table.variables)].argmin())
    return float(sum(t.costs for t in left[-1])), [values[v] for v in range(len(sizes))]


def _restricted(table: Table, fixed: dict[int, int]) -> Table:
    if not any(v in fixed for v in table.variables):
        return table
    at = tuple(fixed.get(v, slice(None)) for v in table.variables)
    return Table(tuple(v for v in table.variables if v not in fixed), np.asarray(table.costs[at]))


def _spread(table: Table, scope: Sequence[int]) -> np.ndarray:
    """Order a table's axes as in a scope, with extent 1 for what it does not depend on."""
    order = sorted(range(len(table.variables)), key=lambda k: scope.index(table.variables[k]))
    moved = np.transpose(table.costs, order)
    extents = iter(moved.shape)
    return moved.reshape([next(extents) if v in table.variables else 1 for v in scope])
