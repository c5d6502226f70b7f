"""Proposals of attention: from the first product to the second, with movement around them."""

import math
from collections.abc import Collection, Iterable, Iterator

from tvm import DataType, tirx

from ....ecg.graph import Graph, Operator
from ....ecg.mapping_types.table import MappingType
from ....ecg.work import at
from ....program.contractions import is_contraction
from ....program.stage import Stage, Unstructured
from ....program.stages.bind import parts_of
from ...index.proposals import LIGHT, MOVES, in_order, leaves, own_producers, reached, reductions

MAX_BETWEEN = 48  # operators followed from one product on
MAX_BEFORE = 64  # operators that feed one attention
FEW_ELEMENTS = 1 << 16  # of rows that products of few rows have as results
_IN_PLACE = (MappingType.ONE_TO_ONE, MappingType.REORGANIZE)


def attention_proposals(graph: Graph, has_copies: bool = False) -> Iterator[tuple[Operator, ...]]:
    """Name sets of operators around two products with softmax between.

    Parameters
    ----------
    has_copies
        Whether kernels on tensor cores copy plain rows of keys, which computed ones are not.

    Yields
    ------
    tuple of Operator
        The products and the operators between them; with the movement of the result; both with
        what makes their masks, too; with the movement of the operands; with all light producers
        that only this attention reads; and, where there are copies, with those of them that compute
        no operand of a product from several tensors.
    """
    stages = {op: reductions(op) for op in graph.operators}
    products = [op for op, found in stages.items() if len(found) == 1 and is_contraction(found[0])]
    known = set(products)
    for first in products:
        below = _below(graph, first, known, stages)
        for last in [op for op in below if op in known]:
            core = {first, last} | reached([last], graph.predecessors, below)
            if _is_softmax([s for op in core - {first, last} for s in stages[op]]):
                yield from _nested(graph, core, last, has_copies)


def _nested(
    graph: Graph, core: set[Operator], last: Operator, has_copies: bool
) -> Iterator[tuple[Operator, ...]]:
    after = core | set(_after(graph, last))
    moved = after | set(_before(graph, after, MOVES))
    everything = after | set(_before(graph, after, LIGHT))
    masks = set(_before(graph, {op for op in core if not _is_product(op)}, LIGHT))
    sets = [core, core | masks, after, after | masks, moved, everything]
    if has_copies:
        sets.append(everything - _computed_operands(graph, core, everything))
    for operators in dict.fromkeys(map(frozenset, sets)):
        yield in_order(operators)


def _computed_operands(
    graph: Graph, core: Collection[Operator], everything: Collection[Operator]
) -> set[Operator]:
    """Find what computes operands of products from several tensors, and all that it needs.

    Such as a rotary embedding, or a concatenation of its halves: keys are no plain rows then, and
    are computed again by each block of queries. Casts, scales and broadcasts stay.
    """
    found: set[Operator] = set()
    seen: set[Operator] = set()
    frontier = [p for op in core if _is_product(op) for p in graph.predecessors(op)]
    while frontier:
        op = frontier.pop()
        if op in seen or op in core or op not in everything:
            continue
        seen.add(op)
        if sum(math.prod(map(at, value.shape)) > 1 for value in dict.fromkeys(op.tensors)) > 1:
            found.add(op)
        else:
            frontier += graph.predecessors(op)
    return reached(found, graph.predecessors, everything)


def _is_product(op: Operator) -> bool:
    found = reductions(op)
    return len(found) == 1 and is_contraction(found[0])


def _is_softmax(found: list[Stage]) -> bool:
    """Whether the reductions are a maximum and a sum, and no others."""
    kinds = [type(s.values[0]) for s in found if len(s.values) == 1]
    return len(found) == 2 and set(kinds) == {tirx.Max, tirx.Add}


def _below(
    graph: Graph, first: Operator, products: set[Operator], stages: dict[Operator, list[Stage]]
) -> dict[Operator, None]:
    """Follow results through light operators and row reductions, up to products."""
    below: dict[Operator, None] = {}
    frontier = [first]
    while frontier and len(below) < MAX_BETWEEN:
        for op in graph.successors(frontier.pop(0)):
            if op in below or not (op.type in LIGHT or stages[op]):
                continue
            below[op] = None
            if op not in products:
                frontier.append(op)
    return below


def _after(graph: Graph, last: Operator) -> Iterator[Operator]:
    """Follow the result through operators that only move it."""
    op = last
    while True:
        readers = graph.successors(op)
        if len(readers) != 1 or readers[0].type not in MOVES or leaves(op):
            return
        op = readers[0]
        yield op


def _before(
    graph: Graph, inside: Iterable[Operator], types: tuple[MappingType, ...]
) -> dict[Operator, None]:
    """Find producers that nothing else reads, other than the epilogue of another product."""
    return own_producers(graph, inside, types, MAX_BEFORE, lambda op: not _is_epilogue(op))


def _is_epilogue(op: Operator) -> bool:
    """Whether arithmetic follows a product or a norm, and can be fused into it.

    Arithmetic between them, such as that of a rotary embedding's halves, goes into it, too; what is
    broadcast does not, nor what would be written in a wider type than the product. A cast to a
    half type counts as arithmetic: in front of it, twice the bytes would be written and read. So
    does the concatenation of a few rotated rows, which the product's kernel stores as a whole.
    """
    if _only_moves(op) and not _narrows(op):
        return _joins_few_rows(op)
    frontier, seen = [op], {op}
    while frontier:
        after = frontier.pop()
        for value in after.tensors:
            before = value.producer
            if before is None or before in seen or after.operand_type(value) not in _IN_PLACE:
                continue
            if before.type is MappingType.MANY_TO_MANY:
                return _bits(op) <= _bits(before)
            if before.type is not MappingType.SHUFFLE:
                frontier.append(before)
                seen.add(before)
    return False


def _joins_few_rows(op: Operator) -> bool:
    before = [value.producer for value in op.tensors]
    is_small = math.prod(map(at, op.results[0].shape)) <= FEW_ELEMENTS
    return is_small and len(before) > 1 and all(p is not None and _is_epilogue(p) for p in before)


def _only_moves(op: Operator) -> bool:
    """Whether an operator only slices, concatenates or repeats tensors."""
    try:
        return all(part.is_movement for part in parts_of(op))
    except Unstructured:
        return False


def _narrows(op: Operator) -> bool:
    """Whether an operator rounds its operand to a type of fewer bits."""
    return bool(op.tensors) and _bits(op) < min(DataType(v.dtype).bits for v in op.tensors)


def _bits(op: Operator) -> int:
    return max(DataType(value.dtype).bits for value in op.results)
