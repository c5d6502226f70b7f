"""The published search: the rule that saves most operations, again and again.

DNNFusion (Niu et al., PLDI 2021, section 4.2) takes, inside a partition, the rule with the largest
reduction in FLOPs, and repeats that until no rule reduces them. Kept to be compared with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .egraph import EGraph
from .extract import extract
from .head import Heads
from .law import Law, Match
from .terms import Term

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
    cost = operations(terms)
    for _ in range(STEPS):
        best = min(
            ((operations(after), i, after) for i, after in enumerate(_steps(terms, heads, laws))),
            default=(cost, 0, terms),
        )
        if best[0] >= cost:
            break
        cost, _, terms = best
    return terms


def _steps(terms: tuple[Term, ...], heads: Heads, laws: Sequence[Law]) -> list[tuple[Term, ...]]:
    """Write what every single application of a law makes of terms."""
    found = []
    directed = [d for law in laws for d in (law, law.backwards()) if d is not None]
    original = EGraph(heads)
    original.add_terms(terms)
    for law in directed:
        for number in tuple(original.classes):
            for place, _ in enumerate(law.find(original, number)):
                graph = EGraph(heads)
                roots = graph.add_terms(terms)
                match = list(law.find(graph, number))[place]
                if law.check(match) is None and _written(law, match, graph):
                    found.append(extract(graph, roots, 1)[0].terms)
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
