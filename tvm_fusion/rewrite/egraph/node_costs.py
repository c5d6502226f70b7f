"""Costs of an e-graph's classes when some of them are free: what extraction decides by."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .eclass_analysis import Node
from .egraph import EGraph
from .weights import weight

_CONSTANT = 2.0**-10  # of an operator that is computed at compile time: leaves are taken first


class NodeCosts:
    """Nodes of the classes that some roots can be computed from.

    Parameters
    ----------
    graph : EGraph
        Rebuilt.
    roots : sequence of int
        Classes that are needed.

    Attributes
    ----------
    numbers : list of int
        Classes; everything else here counts them by their position.
    position : dict of int to int
        Positions of the classes.
    nodes : list of Node
        Those of a class are together.
    first : numpy.ndarray
        Of each class, the position of its first node.
    weights : numpy.ndarray
        Of the nodes, without their operands.
    shared : list of int
        Positions of classes that several nodes read, and that cost something.
    """

    def __init__(self, graph: EGraph, roots: Sequence[int]) -> None:
        self.numbers = _reachable(graph, roots)
        self.position = {number: i for i, number in enumerate(self.numbers)}
        self.nodes: list[Node] = []
        owners: list[int] = []
        readers = np.zeros(len(self.numbers), int)
        rows: list[list[int]] = []
        weights: list[float] = []
        for i, number in enumerate(self.numbers):
            for node in graph.classes[number].nodes:
                operands = list(dict.fromkeys(self.position[graph.find(o)] for o in node.operands))
                self.nodes.append(node)
                owners.append(i)
                rows.append(operands)
                weights.append(_weight(graph, number, node))
                readers[operands] += 1
        self.first = np.searchsorted(owners, np.arange(len(self.numbers)))
        self.weights = np.array(weights)
        # An operand that is not there costs nothing: the row behind the last class's.
        width = max([1, *map(len, rows)])
        self._operands = np.full((width, len(rows)), len(self.numbers))
        for i, operands in enumerate(rows):
            self._operands[: len(operands), i] = operands
        self.shared = [
            i
            for i, number in enumerate(self.numbers)
            if readers[i] > 1 and not graph.classes[number].is_constant
            if any(node.head.call is not None for node in graph.classes[number].nodes)
        ]

    def costs(
        self, free: Sequence[Sequence[int]], known: np.ndarray | None = None, banned: int = -1
    ) -> np.ndarray:
        """Find what the cheapest expression of each class costs, repetitions included.

        Parameters
        ----------
        free : sequence of sequence of int
            For each result, the classes that cost nothing.
        known : numpy.ndarray, optional
            Costs without free classes, from which the search starts.
        banned : int, optional
            A node that must not be taken.

        Returns
        -------
        numpy.ndarray
            Of as many rows as there are classes, and one more; a column per result.
        """
        size = len(self.numbers)
        found = np.full((size + 1, len(free)), np.inf)
        if known is not None:
            found[:] = known[:, None]
        found[size] = 0.0
        rows = [i for classes in free for i in classes]
        columns = [column for column, classes in enumerate(free) for _ in classes]
        found[rows, columns] = 0.0
        while True:
            better = np.minimum.reduceat(self._by_node(found, banned), self.first, axis=0)
            better[rows, columns] = 0.0
            if (better == found[:size]).all():
                return found
            found[:size] = better

    def choices(self, costs: np.ndarray, banned: int = -1) -> np.ndarray:
        """Find the cheapest node of each class, by the costs of one column."""
        by_node = self._by_node(costs[:, None], banned)[:, 0]
        least = np.repeat(
            np.minimum.reduceat(by_node, self.first), np.diff([*self.first, len(self.nodes)])
        )
        cheapest = np.flatnonzero(by_node == least)
        return cheapest[np.searchsorted(cheapest, self.first)]

    def _by_node(self, costs: np.ndarray, banned: int) -> np.ndarray:
        found = self.weights[:, None] + costs[self._operands[0]]
        for operands in self._operands[1:]:
            found += costs[operands]
        if banned >= 0:
            found[banned] = np.inf
        return found


def _reachable(graph: EGraph, roots: Sequence[int]) -> list[int]:
    found: dict[int, None] = {}
    stack = [graph.find(root) for root in reversed(roots)]
    while stack:
        number = stack.pop()
        if number not in found:
            found[number] = None
            for node in graph.classes[number].nodes:
                stack.extend(graph.find(o) for o in node.operands)
    return list(found)


def _weight(graph: EGraph, number: int, node: Node) -> float:
    known = graph.classes[number]
    if node.head.call is None:
        return 0.0
    if known.is_constant:
        return _CONSTANT
    return weight(node.head, known.type, [graph[o].type for o in node.operands])
