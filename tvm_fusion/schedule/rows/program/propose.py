"""Proposals of row programs: reductions over the same rows, with the operators between them.

The mapping table separates two Many-to-Many operators, and a One-to-Many operator from the
reduction that it feeds. Over the same rows both are one kernel: softmax and norms as primitive
operators, an embedding lookup before its norm, a broadcast mask before softmax.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ....ecg.graph import Graph, Operator
from ....ecg.mapping_types.table import MappingType
from ...index.proposals import LIGHT, in_order, own_producers, reached

MAX_BETWEEN = 48  # operators followed from one reduction on
MAX_SHARED = 3  # One-to-Many operators that others read as well


def row_proposals(
    graph: Graph, is_row_reduction: Callable[[Operator], bool], shared: bool
) -> Iterator[tuple[Operator, ...]]:
    """Name sets of operators around row reductions.

    Parameters
    ----------
    is_row_reduction : callable
        Whether a Many-to-Many operator reduces rows, rather than contracting two operands.
    shared : bool
        Whether kernels may have results that others read as well.

    Yields
    ------
    tuple of Operator
        Pairs of reductions with what lies between them; connected pairs together; each of them,
        and each single reduction, with the One-to-Many operators before it; single reductions with
        those that others read as well, whose results are then the kernel's, too.
    """
    reductions = [
        op for op in graph.operators if op.type is MappingType.MANY_TO_MANY and is_row_reduction(op)
    ]
    known = set(reductions)
    spans = [span for op in reductions for span in _spans(graph, op, known)]
    sets: list[frozenset[Operator]] = [*spans, *_joined(spans)]
    sets.extend(frozenset([op]) for op in reductions)
    for operators in dict.fromkeys(sets):
        if len(operators) > 1:
            yield in_order(operators)
        extended = _with_broadcasts(graph, operators)
        if extended != operators:
            yield in_order(extended)
        if shared and len(operators) == 1:
            for added in _with_shared_broadcasts(graph, operators):
                if added != extended:
                    yield in_order(added)


def _spans(
    graph: Graph, first: Operator, reductions: set[Operator]
) -> Iterator[frozenset[Operator]]:
    """Yield, for each reduction that a reduction reaches, all operators on the paths there."""
    below: dict[Operator, None] = {}
    frontier = [first]
    ends = []
    while frontier and len(below) < MAX_BETWEEN:
        for op in graph.successors(frontier.pop(0)):
            if op in below:
                continue
            if op in reductions:
                ends.append(op)
            elif op.type not in LIGHT:
                continue
            below[op] = None
            frontier.append(op)
    for last in ends:
        yield frozenset([first, *reached([last], graph.predecessors, below)])


def _joined(spans: list[frozenset[Operator]]) -> list[frozenset[Operator]]:
    """Join spans that share operators: a norm of primitive operators may have three reductions."""
    joined: list[frozenset[Operator]] = []
    for span in spans:
        touching = [u for u in joined if u & span]
        joined = [u for u in joined if not u & span]
        joined.append(span.union(*touching))
    return joined


def _with_shared_broadcasts(
    graph: Graph, operators: frozenset[Operator]
) -> Iterator[frozenset[Operator]]:
    """Add light producers, whoever else reads them, up to each of the nearest One-to-Many ones."""
    candidates: dict[Operator, None] = {}
    broadcasts: list[Operator] = []
    frontier = [*operators]
    while frontier and len(candidates) < MAX_BETWEEN and len(broadcasts) < MAX_SHARED:
        for op in graph.predecessors(frontier.pop(0)):
            if op.type not in LIGHT or op in candidates:
                continue
            candidates[op] = None
            frontier.append(op)
            if op.type is MappingType.ONE_TO_MANY:
                broadcasts.append(op)
                yield operators | reached(broadcasts, graph.successors, candidates)


def _with_broadcasts(graph: Graph, operators: frozenset[Operator]) -> frozenset[Operator]:
    """Add light producers that nothing else reads, up to the last One-to-Many one of a path."""
    candidates = own_producers(graph, in_order(operators), LIGHT, MAX_BETWEEN)
    broadcasts = [op for op in candidates if op.type is MappingType.ONE_TO_MANY]
    return operators | reached(broadcasts, graph.successors, candidates)
