"""Extraction: the cheapest expressions of an e-graph, each shared subexpression counted once."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .egraph import EGraph, Node
from .terms import Term
from .weights import weight

BEAM = 6  # expressions that are kept of each class
ROUNDS = 40  # deepest expression, nearly


@dataclass(frozen=True)
class Form:
    """Expressions of several classes together.

    Attributes
    ----------
    terms : tuple of Term
        One per class.
    cost : float
        Of all distinct subterms.
    """

    terms: tuple[Term, ...]
    cost: float


class _Entry:
    """An expression of one class, with the costs of its distinct subterms."""

    __slots__ = ("cost", "parts", "term", "text")

    def __init__(self, term: Term, parts: dict[Term, float]) -> None:
        self.term, self.parts = term, parts
        self.cost = sum(parts.values())


def extract(graph: EGraph, roots: Sequence[int], most: int) -> list[Form]:
    """Find the cheapest forms of some classes.

    Costs add up over distinct subterms, which makes the cheapest form of an expression depend on
    what else is computed: a few expressions are kept of every class, not one.

    Parameters
    ----------
    graph : EGraph
        Rebuilt.
    roots : sequence of int
        Classes that are needed.
    most : int
        Forms wanted.

    Returns
    -------
    list of Form
        Distinct ones, cheapest first.
    """
    extractor = _Extractor(graph)
    extractor.run()
    found: list[tuple[dict[Term, float], tuple[Term, ...]]] = [({}, ())]
    for root in roots:
        entries = extractor.best[graph.find(root)]
        joined = [
            ({**parts, **entry.parts}, (*terms, entry.term))
            for (parts, terms), entry in itertools.product(found, entries)
        ]
        joined.sort(key=lambda item: sum(item[0].values()))
        found = joined[: max(most, BEAM)]
    return [Form(terms, sum(parts.values())) for parts, terms in found[:most]]


class _Extractor:
    def __init__(self, graph: EGraph) -> None:
        self._graph = graph
        self._terms: dict[tuple, Term] = {}
        self._tried: set[tuple] = set()
        self._weights: dict[Node, float] = {}
        self.best: dict[int, list[_Entry]] = {number: [] for number in graph.classes}

    def run(self) -> None:
        """Improve the entries of classes until none gets better."""
        graph = self._graph
        stale = dict.fromkeys(graph.classes)
        for _ in range(ROUNDS):
            changed: dict[int, None] = {}
            for number in stale:
                if self._improve(number):
                    changed[number] = None
            if not changed:
                return
            stale = dict.fromkeys(
                graph.find(owner) for n in changed for owner in graph.classes[n].parents.values()
            )

    def _improve(self, number: int) -> bool:
        known = self._graph.classes[number]
        before = self.best[number]
        if known.is_constant:
            self.best[number] = before or self._constant(number)
            return not before and bool(self.best[number])
        found = {entry.term: entry for entry in before}
        worst = max((e.cost for e in before), default=math.inf) if len(before) == BEAM else math.inf
        for node, law in known.nodes.items():
            for entry in self._entries(number, node, law, worst):
                found.setdefault(entry.term, entry)
        kept = sorted(found.values(), key=lambda e: e.cost)[:BEAM]
        self.best[number] = kept
        return [entry.term for entry in kept] != [entry.term for entry in before]

    def _constant(self, number: int) -> list[_Entry]:
        """Take one way to write a constant, which costs nothing: a leaf if there is one."""
        nodes = self._graph.classes[number].nodes.items()
        for node, law in sorted(nodes, key=lambda item: len(item[0].operands)):
            for entry in self._entries(number, node, law, math.inf):
                return [entry]
        return []

    def _entries(self, number: int, node: Node, law: str, most: float) -> Iterator[_Entry]:
        """Yield the expressions of a node that are not known yet and may be cheap enough."""
        choices = [self.best[self._graph.find(o)] for o in node.operands]
        own = self._weight(number, node)
        for chosen in itertools.islice(itertools.product(*choices), BEAM * BEAM):
            key = (node, *(id(entry.term) for entry in chosen))
            if key in self._tried or own + max((e.cost for e in chosen), default=0.0) > most:
                continue
            self._tried.add(key)
            parts: dict[Term, float] = {}
            for entry in chosen:
                parts.update(entry.parts)
            ty = self._graph.classes[number].type
            term = Term(node.head, tuple(entry.term for entry in chosen), ty, law)
            term = self._terms.setdefault((node.head, *key[1:]), term)
            if term not in parts:  # a cycle through the class itself
                parts[term] = own
                yield _Entry(term, parts)

    def _weight(self, number: int, node: Node) -> float:
        if node not in self._weights:
            graph = self._graph
            self._weights[node] = (
                0.0
                if graph.classes[number].is_constant
                else weight(
                    node.head, graph.classes[number].type, [graph[o].type for o in node.operands]
                )
            )
        return self._weights[node]
