"""Proposals: convolutions with the pooling of their results."""

from __future__ import annotations

from collections.abc import Iterator

from ...ecg.graph import Graph, Operator
from ...ecg.mapping import MappingType
from ...program.contractions import is_contraction
from ...program.images import convolved_rank
from ..index.proposals import leaves, reductions

MOST_BETWEEN = 4  # operators between the two


def pooling_proposals(graph: Graph) -> Iterator[tuple[Operator, ...]]:
    """Name convolutions, the one-to-one operators after them, and the pooling that alone reads it.

    Parameters
    ----------
    graph : Graph
        Where to look.

    Yields
    ------
    tuple of Operator
        In order.
    """
    for op in graph.operators:
        found = [op]
        while convolved_rank(op) and len(found) <= MOST_BETWEEN + 1:
            readers = graph.successors(found[-1])
            if len(readers) != 1 or leaves(found[-1]):
                break
            (reader,) = readers
            found.append(reader)
            if reader.type is MappingType.MANY_TO_MANY:
                stages = reductions(reader)
                if len(stages) == 1 and not is_contraction(stages[0]):
                    yield tuple(found)
                break
            if reader.type is not MappingType.ONE_TO_ONE:
                break
