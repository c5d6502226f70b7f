"""The published search: the rule that saves most operations, again and again.

DNNFusion (Niu et al., PLDI 2021, section 4.2) takes, inside a partition, the rule with the largest
reduction in FLOPs, and repeats that until no rule reduces them. Kept to be compared with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tvm
from tvm.ir.transform import PassContext
from tvm.target import Target

from ..ecg.work import at
from .egraph import EGraph
from .extract import extract
from .head import Heads
from .law import Law, Match
from .regions import Region
from .saturate import Use
from .search import Found, Searcher, rewrite_regions
from .terms import Term, subterms
from .weights import MOVES, REDUCTIONS, elements

STEPS = 64


def greedy(
    terms: tuple[Term, ...],
    heads: Heads,
    laws: Sequence[Law],
    operations: Callable[[tuple[Term, ...]], float],
) -> tuple[Term, ...]:
    """Rewrite step by step.

    Parameters
    ----------
    terms : tuple of Term
        What to rewrite.
    heads : Heads
        Of the terms.
    laws : sequence of Law
        Applied forwards and backwards, one at a time.
    operations : callable
        Counts the operations of terms.

    Returns
    -------
    tuple of Term
        From which no single step saves operations.
    """
    return _descend(terms, heads, laws, operations)[0]


def _descend(
    terms: tuple[Term, ...],
    heads: Heads,
    laws: Sequence[Law],
    operations: Callable[[tuple[Term, ...]], float],
) -> tuple[tuple[Term, ...], list[str]]:
    """Rewrite step by step; returns the laws of the steps, too."""
    cost, taken = operations(terms), []
    for _ in range(STEPS):
        found = _steps(terms, heads, laws)
        costs = [operations(after) for after, _ in found]
        if not found or min(costs) >= cost:
            break
        cost = min(costs)
        terms, law = found[costs.index(cost)]
        taken.append(law)
    return terms, taken


def _steps(
    terms: tuple[Term, ...], heads: Heads, laws: Sequence[Law]
) -> list[tuple[tuple[Term, ...], str]]:
    """Write what every single application of a law makes of terms."""
    found = []
    directed = [d for law in laws for d in (law, law.backwards()) if d is not None]
    original = EGraph(heads)
    original.add_terms(terms)
    for law in directed:
        for number in tuple(original.classes):
            for place, seen in enumerate(law.find(original, number)):
                if law.check(seen) is not None:
                    continue
                graph = EGraph(heads)
                roots = graph.add_terms(terms)
                match = list(law.find(graph, number))[place]
                if _written(law, match, graph):
                    found.append((extract(graph, roots, 1)[0].terms, law.name))
    return found


def _written(law: Law, match: Match, graph: EGraph) -> bool:
    written = law.rewrite(match)
    if written is None or graph[written].type is not graph[match.root].type:
        return False
    # The right side takes the place of the left one, which nothing may choose any more.
    graph[match.root].nodes.clear()
    changed = graph.union(match.root, written)
    graph.rebuild()
    return changed


def flops(terms: tuple[Term, ...]) -> float:
    """Count operations as DNNFusion does: one an element, whatever the operator.

    Movements count nothing, nor does what is known at compile time.
    """
    total, fixed = 0.0, set()
    for term in subterms(terms):
        if term.head.call is None:
            is_fixed = term.head.key[0] != "input"
        else:
            is_fixed = all(id(o) in fixed for o in term.operands)
        if is_fixed:
            fixed.add(id(term))
        elif term.head.call is not None:
            total += _flops(term)
    return total


def _flops(term: Term) -> float:
    name = term.head.name.removeprefix("relax.")
    if name in MOVES:
        return 0
    if name in REDUCTIONS:
        return elements(term.operands[0].type)
    if name == "matmul":
        return 2 * elements(term.type) * at(term.operands[0].type.shape.values[-1])
    if name.startswith("nn.conv"):
        filters = term.operands[1].type
        return 2 * elements(term.type) * elements(filters) / max(1, at(filters.shape.values[0]))
    return elements(term.type)


class GreedySearcher(Searcher):
    """Searches regions as published; the planner only says what came of it."""

    def _search(self, region: Region, before: tuple[Term, ...]) -> Found:
        after, taken = _descend(before, self.heads, self._laws, flops)
        for name in taken:
            use = self.uses.setdefault(name, Use())
            use.tried += 1
            use.fired += 1
        cost = self._estimate(before, region)
        if not taken:
            return Found(before, before, cost, cost)
        estimated = self._estimate(after, region)
        return Found(before, after, cost, estimated, tuple(sorted(set(taken))))


@tvm.transform.module_pass(opt_level=0, name="GreedyEquivalents")
class GreedyEquivalents:
    """Rewrite regions by the rule that saves most operations, again and again.

    Parameters
    ----------
    laws : sequence of Law, optional
        All that hold without a flag, by default.
    """

    def __init__(self, laws: Sequence[Law] | None = None) -> None:
        self._laws = laws

    def transform_module(self, mod: tvm.IRModule, _ctx: PassContext) -> tvm.IRModule:
        """Rewrite every function that is ours; each changed region is recorded."""
        from .rules import laws

        chosen = laws() if self._laws is None else self._laws
        return rewrite_regions(mod, GreedySearcher(chosen, Target.current(allow_none=False)))
