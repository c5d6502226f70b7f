"""Convolutions with the transposes around them, in graphs whose images are channels-last.

    x[n, h, w, c] -> permute_dims -> conv2d -> bias, activation -> permute_dims -> y[n, h, w, k]

Kernels that multiply channels-last images take all of it, but no pair: with one of the transposes
a convolution reads one layout and writes another.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...ecg.graph import Graph, Operator
from ...ecg.mapping import MappingType
from ...program.images import convolved_rank
from ..index.proposals import leaves, own_producers

_MAPS = (MappingType.ONE_TO_ONE, MappingType.SHUFFLE)


def transpose_proposals(graph: Graph) -> Iterator[tuple[Operator, ...]]:
    """Name each convolution between two transposes, with those and the maps between them."""
    for op in graph.operators:
        if not convolved_rank(op):
            continue
        before = own_producers(graph, [op], (MappingType.SHUFFLE,), 1)
        after = _up_to_transpose(graph, op) if before else []
        if after:
            yield *before, op, *after


def _up_to_transpose(graph: Graph, op: Operator) -> list[Operator]:
    """Follow an operator's only reader as far as a transpose; nothing where none comes."""
    found: list[Operator] = []
    while not leaves(op):
        readers = graph.successors(op)
        if len(readers) != 1 or readers[0].type not in _MAPS:
            break
        (op,) = readers
        found.append(op)
        if op.type is MappingType.SHUFFLE:
            return found
    return []
