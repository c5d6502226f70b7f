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
from dataclasses import dataclass, replace
from math import prod

import numpy as np

LARGEST = 1 << 16  # entries of a table


@dataclass(frozen=True, eq=False)
class Table:
    """A term of the sum."""

    variables: tuple[int, ...]  # on which it depends, without duplicates
    costs: np.ndarray  # one axis per variable; infinite where a choice is not allowed


def minimize(
    sizes: Sequence[int], tables: Sequence[Table], starts: Sequence[Sequence[int]] = ()
) -> tuple[list[int], bool]:
    """Choose a value for every variable.

    Parameters
    ----------
    sizes
        How many values each variable has; 0 is the first.
    starts
        Choices to begin with where some variables must be fixed; all zeros by default.

    Returns
    -------
    list of int
        Values; those of the first in order among equal ones.
    bool
        Whether they are proved to be a global minimum.
    """
    order, fixed = _order(sizes, tables)
    elimination = _Elimination(sizes, tables, order, fixed)
    if not fixed:
        return elimination.values(elimination.run({})), True
    best: tuple[float, list[int]] | None = None
    for start in starts or [[0] * len(sizes)]:
        found = _descend(elimination, sizes, {v: start[v] for v in fixed})
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
    elimination: _Elimination, sizes: Sequence[int], fixed: dict[int, int]
) -> tuple[float, list[int]]:
    best = elimination.run(fixed)
    changed = True
    while changed:
        changed = False
        for v in fixed:
            for value in range(sizes[v]):
                if value == best.fixed[v]:
                    continue
                found = elimination.run({**best.fixed, v: value}, best)
                if found.cost < best.cost * (1 - 1e-12):
                    best, changed = found, True
    return best.cost, elimination.values(best)


@dataclass(frozen=True, eq=False)
class _Run:
    """What an elimination has computed for values of the fixed variables."""

    fixed: dict[int, int]  # these values
    # Of all terms: the tables at these values, then what each step has left.
    costs: list[np.ndarray]
    # By step, the sum of the terms that mention its variable, which is the last axis.
    joined: list[np.ndarray]
    cost: float  # the minimum


class _Elimination:
    """Exact minimization over the variables in an order, at values of those that are fixed.

    A step's result depends on few of the fixed variables: a run takes over from another one all
    steps but those that variables with other values reach.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        tables: Sequence[Table],
        order: Sequence[int],
        fixed: Sequence[int],
    ) -> None:
        self._sizes, self._tables, self._order, self._fixed = sizes, tables, order, set(fixed)
        self._position = {v: k for k, v in enumerate(order)}
        self._readers: dict[int, list[int]] = {v: [] for v in fixed}  # tables that mention them
        self._terms: list[list[_Term]] = [[] for _ in (*order, "no variable")]
        self._targets: list[int] = []  # the step that adds a term up; -1 for constants
        self._scopes: list[tuple[int, ...]] = []
        for number, table in enumerate(tables):
            self._add(tuple(v for v in table.variables if v not in self._fixed))
            for v in self._fixed.intersection(table.variables):
                self._readers[v].append(number)
        for k, v in enumerate(order):
            mine = [u for term in self._terms[k] for u in term.variables if u != v]
            self._scopes.append(tuple(dict.fromkeys(mine)))
            self._terms[k] = [term.spread((*self._scopes[k], v)) for term in self._terms[k]]
            self._add(self._scopes[k])

    def _add(self, variables: tuple[int, ...]) -> None:
        target = min((self._position[v] for v in variables), default=-1)
        self._terms[target].append(_Term(len(self._targets), variables))
        self._targets.append(target)

    def run(self, fixed: dict[int, int], near: _Run | None = None) -> _Run:
        """Minimize at values of the fixed variables, beginning with what a run at others left."""
        count = len(self._tables)
        if near is None:
            costs = [np.empty(0)] * len(self._targets)
            joined = [np.empty(0)] * len(self._order)
            changed, repeated = set(range(count)), set(range(len(self._order)))
        else:
            costs, joined = list(near.costs), list(near.joined)
            others = [v for v in fixed if fixed[v] != near.fixed[v]]
            changed = {number for v in others for number in self._readers[v]}
            repeated = {self._targets[number] for number in changed}
        for number in changed:
            table = self._tables[number]
            at = tuple(fixed.get(v, slice(None)) for v in table.variables)
            costs[number] = np.asarray(table.costs[at])
        for k in range(len(self._order)):
            if k in repeated:
                joined[k] = self._joined(k, costs)
                costs[count + k] = joined[k].min(axis=-1)
                repeated.add(self._targets[count + k])
        return _Run(fixed, costs, joined, float(sum(costs[t.number] for t in self._terms[-1])))

    def _joined(self, k: int, costs: Sequence[np.ndarray]) -> np.ndarray:
        """Add up a step's terms, over no more axes than those so far depend on."""
        sum_ = np.zeros([1] * len(self._scopes[k]) + [self._sizes[self._order[k]]])
        for term in self._terms[k]:
            sum_ = sum_ + costs[term.number].transpose(term.order)[term.at]
        return sum_

    def values(self, run: _Run) -> list[int]:
        """Return all variables' values at the minimum; those of the first in order among equals."""
        values = dict(run.fixed)
        for k, v in reversed(list(enumerate(self._order))):
            values[v] = int(run.joined[k][tuple(values[u] for u in self._scopes[k])].argmin())
        return [values[v] for v in range(len(self._sizes))]


@dataclass(frozen=True)
class _Term:
    """A term of a step's sum, with how its axes become those of the sum."""

    number: int
    variables: tuple[int, ...]
    order: tuple[int, ...] = ()
    at: tuple[slice | None, ...] = ()

    def spread(self, scope: Sequence[int]) -> _Term:
        """Order the axes as in a scope, with extent 1 for what the term does not depend on."""
        order = sorted(range(len(self.variables)), key=lambda k: scope.index(self.variables[k]))
        at = tuple(slice(None) if v in self.variables else None for v in scope)
        return replace(self, order=tuple(order), at=at)
