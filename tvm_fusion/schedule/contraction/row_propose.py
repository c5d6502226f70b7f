"""What products of computed rows propose: a product with the reductions behind its rows."""

from __future__ import annotations

from collections.abc import Iterator

from ...ecg.graph import Graph, Operator
from ...program.contractions import is_contraction
from ...program.stage import Stage
from ..proposals import LIGHT, in_order, reached, reductions

MAX_BEFORE = 48  # operators followed from one product back
LEVELS = 3  # reductions behind each other, such as mean, variance and what guards them


def row_product_proposals(graph: Graph) -> Iterator[tuple[Operator, ...]]:
    """Name sets of operators: one product, the nearest reductions before it, and the way between.

    Parameters
    ----------
    graph : Graph
        Where to look.

    Yields
    ------
    tuple of Operator
        First with the nearest reductions alone, then with those that they need in turn.
    """
    stages = {op: reductions(op) for op in graph.operators}
    for op, found in stages.items():
        if len(found) == 1 and is_contraction(found[0]):
            inside = {op}
            for _ in range(LEVELS):
                more = _nearest(graph, inside, stages)
                if not more:
                    break
                inside |= more
                yield in_order(inside)


def _nearest(
    graph: Graph, inside: set[Operator], stages: dict[Operator, list[Stage]]
) -> set[Operator]:
    """Find the reductions that light operators alone separate from a set, and those operators."""
    above: dict[Operator, None] = {}
    frontier = list(inside)
    nearest = []
    while frontier and len(above) < MAX_BEFORE:
        for op in graph.predecessors(frontier.pop(0)):
            if op in above or op in inside:
                continue
            if stages[op] and not any(map(is_contraction, stages[op])):
                nearest.append(op)
            elif op.type not in LIGHT:
                continue
            else:
                frontier.append(op)
            above[op] = None
    return reached(nearest, graph.successors, above)
