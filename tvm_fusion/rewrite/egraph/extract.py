"""Extraction: the cheapest expressions of an e-graph, each shared subexpression counted once.

Without sharing, the cheapest node of every class gives the cheapest expression. With it, a costlier
one may be better, if what it needs is computed anyway. So it is assumed of classes, one by one,
that they are computed: they are free for all that can use them, and cost what they cost once.
"""

import heapq
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from .analysis import Node
from .facts.weights import weight
from .graph import EGraph
from .head import type_key
from .terms import Term, subterms

TRIALS = 120  # of classes that may be worth sharing
_WIDTH = 1 << 19  # numbers that are worked on at once


@dataclass(frozen=True)
class Form:
    """Expressions of several classes together."""

    terms: tuple[Term, ...]  # one per class
    cost: float  # of all distinct subterms


def extract(graph: EGraph, roots: Sequence[int], most: int) -> list[Form]:
    """Find the cheapest forms of some classes.

    Returns
    -------
    list of Form
        Cheapest first; of forms with the same operators on the same types, behind the same ones,
        only the first, as they differ in the order of like operators only.
    """
    extractor = _Extractor(graph, [graph.find(root) for root in roots])
    shared, best = extractor.share()
    found = [best]
    if most > 1:
        found += extractor.variants(shared, best)
    distinct: dict[Hashable, Form] = {}
    for form in sorted(found, key=lambda f: f.cost):
        distinct.setdefault(_operators(form), form)
    return list(distinct.values())[:most]


class _Extractor:
    def __init__(self, graph: EGraph, roots: Sequence[int]) -> None:
        self._graph = graph
        self._costs = NodeCosts(graph, roots)
        self._roots = [self._costs.position[root] for root in roots]
        self._plain = self._costs.costs([()])[:, 0]
        self._terms: dict[tuple, Term] = {}
        self._weights: dict[Term, float] = {}
        self._nodes: dict[Term, int] = {}

    def share(self) -> tuple[list[int], Form]:
        """Find classes that are worth computing once; the roots are computed anyway."""
        shared = [i for i in dict.fromkeys(self._roots) if self._plain[i] > 0]
        best = self.form(shared)
        # What sharing more than one class saves is at most what each saves alone, nearly always.
        queue = [(-gain, i) for i, gain in self._gains() if gain > 0 and i not in shared]
        useless: list[int] = []
        heapq.heapify(queue)
        for _ in range(TRIALS):
            if not queue:
                break
            bound, i = heapq.heappop(queue)
            form = self.form([*shared, i])
            gain = best.cost - form.cost
            if gain <= 0:
                useless.append(i)
            elif queue and -bound > gain < -queue[0][0]:
                heapq.heappush(queue, (-gain, i))
            else:
                shared, best = [*shared, i], form
        for i in useless:  # some are of use only together with what came after them
            form = self.form([*shared, i])
            if form.cost < best.cost:
                shared, best = [*shared, i], form
        return shared, best

    def variants(self, shared: Sequence[int], best: Form) -> list[Form]:
        """Find the best forms without one of the nodes of the best one, each."""
        chosen = {self._nodes[t] for t in subterms(best.terms) if t.head.call is not None}
        found = [self.form(shared, banned=node) for node in sorted(chosen)]
        return [form for form in found if np.isfinite(form.cost)]

    def form(self, shared: Sequence[int], banned: int = -1) -> Form:
        """Write the cheapest form if some classes are free for all others."""
        free = [(), tuple(shared), *(tuple(o for o in shared if o != i) for i in shared)]
        known = None if banned >= 0 else self._plain
        costs = self._costs.costs(free, known, banned)
        if not np.isfinite(costs[self._roots, 0]).all():
            return Form((), np.inf)
        choices = [self._costs.choices(column, banned) for column in costs.T]
        writer = _Writer(self, choices, shared)
        terms = tuple(writer.write(root) for root in self._roots)
        return Form(terms, sum(self._weights[t] for t in subterms(terms)))

    def term(self, node: int, owner: int, operands: tuple[Term, ...]) -> Term:
        """Write a node of a class; equal terms are one object."""
        key = (node, *map(id, operands))
        if key not in self._terms:
            known = self._graph.classes[self._costs.numbers[owner]]
            written = self._costs.nodes[node]
            law = known.nodes[written]
            term = Term(written.head, operands, known.type, law)
            self._terms[key] = term
            self._weights[term] = float(self._costs.weights[node])
            self._nodes[term] = node
        return self._terms[key]

    def operands(self, node: int) -> list[int]:
        """List the classes that a node reads."""
        find, position = self._graph.find, self._costs.position
        return [position[find(o)] for o in self._costs.nodes[node].operands]

    def _gains(self) -> list[tuple[int, float]]:
        """Find what the roots save, repetitions included, if one class is computed once."""
        found = []
        width = max(1, _WIDTH // len(self._costs.nodes))
        plain = self._plain[self._roots].sum()
        for start in range(0, len(self._costs.shared), width):
            part = self._costs.shared[start : start + width]
            costs = self._costs.costs([(i,) for i in part], self._plain)
            gains = plain - costs[self._roots].sum(axis=0) - self._plain[part]
            found += list(zip(part, gains.tolist(), strict=True))
        return found


class _Cycle(Exception):
    """A shared class needs itself, by way of another one."""


class _Writer:
    """Follows the cheapest nodes, from the roots to the leaves.

    ``choices`` are those without free classes, those with all shared ones free, then those by which
    each shared class is computed itself: with the others free.
    """

    def __init__(
        self, extractor: _Extractor, choices: Sequence[np.ndarray], shared: Sequence[int]
    ) -> None:
        self._extractor = extractor
        self._choices = choices
        self._column = {i: column for column, i in enumerate(shared, 2)}
        self._written: dict[tuple[int, int], Term] = {}
        self._open: set[int] = set()

    def write(self, i: int, column: int = 1) -> Term:
        """Write a class by the choices of a column."""
        own = self._column.get(i)
        if own is None or column == 0:
            return self._follow(i, column)
        if (i, own) in self._written:
            return self._written[i, own]
        if i in self._open:
            raise _Cycle
        self._open.add(i)
        try:
            term = self._follow(i, own)
        except _Cycle:
            term = self._follow(i, 0)
        finally:
            self._open.discard(i)
        self._written[i, own] = term
        return term

    def _follow(self, i: int, column: int) -> Term:
        known = self._written.get((i, column))
        if known is None:
            node = int(self._choices[column][i])
            operands = tuple(self.write(o, column) for o in self._extractor.operands(node))
            known = self._written[i, column] = self._extractor.term(node, i, operands)
        return known


def _operators(form: Form) -> Hashable:
    """Tell forms apart that take more than the order of like operators to be the same."""
    found: Counter[Hashable] = Counter()
    for term in subterms(form.terms):
        if term.head.call is not None:
            found[(term.head, *(type_key(o.type) for o in term.operands))] += 1
            found.update((term.head.name, o.head.name) for o in term.operands)
    return frozenset(found.items())


# Costs of an e-graph's classes when some of them are free: what extraction decides by.
_CONSTANT = 2.0**-10  # of an operator that is computed at compile time: leaves are taken first


class NodeCosts:
    """Nodes of the classes that some roots can be computed from.

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
        free
            For each result, the classes that cost nothing.
        known
            Costs without free classes, from which the search starts.
        banned
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
