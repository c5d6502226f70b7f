"""Products with the operators that unpack their weights, which growth keeps apart.

Numbers are joined from halves of bytes by a concatenation of several times the bytes: no edge of
that chain pays before all of it is in the product.
"""

from __future__ import annotations

from collections.abc import Iterator

from ....ecg.graph import Graph, Operator
from ....ecg.mapping_types.table import MappingType
from ...index.proposals import LIGHT


def block_proposals(graph: Graph) -> Iterator[tuple[Operator, ...]]:
    """Name products with the operators that make their operands of constants and of integers."""
    for op in graph.operators:
        if op.type is not MappingType.MANY_TO_MANY:
            continue
        weights, rows = (_of_integers(graph, op, only) for only in (True, False))
        if weights:
            yield *sorted(weights, key=lambda x: x.index), op
            if rows - weights:
                yield *sorted(weights | rows, key=lambda x: x.index), op


def _of_integers(graph: Graph, reader: Operator, of_constants: bool) -> set[Operator]:
    """Find what leads from constants, or from int8 of any tensor, to an operator."""
    found: set[Operator] = set()
    for producer in graph.predecessors(reader):
        if producer.type not in LIGHT or len(producer.results) != 1:
            continue
        before = graph.predecessors(producer)
        dtypes = [v.dtype for v in producer.tensors]
        is_free = all(v.producer is None and v.is_constant for v in producer.tensors)
        reads_bytes = "int8" in dtypes and producer.results[0].dtype != "int8"
        if (of_constants and is_free) or (not of_constants and reads_bytes):
            found.add(producer)
            continue
        more = _of_integers(graph, producer, of_constants) if before else set()
        others = [v for v in producer.tensors if v.producer not in more]
        if more and (not of_constants or all(v.is_constant for v in others)):
            found |= {producer, *more}
    return found
