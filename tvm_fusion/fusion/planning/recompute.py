"""Recompute cheap results in every consumer instead of writing them to memory."""

from collections.abc import Container

from ...core.contract.template import Claim
from ...ecg.graph import Operator, Value
from ...ecg.mapping_types.table import MappingType, Relation, combine, most_complex
from ...ecg.work import is_cheap
from ...program.group import Group
from ..claims import NOISE, ClaimBook
from .partition import Block, Partition

MAX_READERS = 4
#: Types of data that is stored in them for its size, and times as many bytes that it widens to.
_NARROW = {"float16": 2, "bfloat16": 2, "int8": 4, "uint8": 4}
MAX_COPIED = 8  # operators


def recompute(value: Value, partition: Partition, book: ClaimBook) -> bool:
    """Compute a value in each block that reads it, if everything together costs less then.

    Parameters
    ----------
    value
        A result that goes from one block to others.
    partition
        Changed if this is done; so is its graph, which gets copies of what makes the value.
    book
        Asked for claims and costs.

    Returns
    -------
    bool
        Whether anything changed.
    """
    if value.producer is None:
        return False
    source = partition.block_of[value.producer]
    readers = [b for b in partition.blocks_of(value.consumers) if b is not source]
    if value.leaves or not 1 <= len(readers) <= MAX_READERS or source.is_opaque:
        return False
    cone = _cone(value.producer, source)
    if not _is_copyable(cone):
        return False
    type_ = most_complex(op.type for op in cone)
    cells = [combine(type_, r.type) for r in readers]
    if any(
        r.is_opaque or c.relation is Relation.BREAK for r, c in zip(readers, cells, strict=True)
    ):
        return False

    served = {op for r in readers for op in r.members}
    rest = _rest(cone, source, served)
    groups = [Group((*cone, *r.members), hidden=_results(cone)) for r in readers]
    if rest:
        hidden = {v for v in _results(cone) if not _is_wanted(v, source, served)}
        groups.append(Group(rest, hidden))
    answers = [book.claim(group) for group in groups]
    claims = [a for a in answers if isinstance(a, Claim)]
    if len(claims) < len(answers):
        return False
    after, before = book.compare(claims, [source.claim, *(r.claim for r in readers)])
    # What is read of a narrow type is fewer bytes, also where another bound hides it.
    noise = NOISE if after.source == "measured" else 1e-9
    slack = noise if len(cone) == 1 and widens(cone[0]) else -noise
    if after.us >= before.us * (1 + slack):
        return False

    graph = partition.graph
    for reader, cell in zip(readers, cells, strict=True):
        copies = graph.duplicate(cone, set(reader.members))
        _settle((*copies, *reader.members), cell.type or reader.type, partition, book)
    gone = [op for op in source.members if op not in rest]
    for op in reversed(gone):
        graph.remove(op)
    partition.drop(gone)
    if rest:
        _settle(rest, source.type, partition, book)
    return True


def widens(op: Operator) -> bool:
    """Whether an operator makes float32 of a tensor of a half type or of quantised bytes alone."""
    return (
        op.type is MappingType.ONE_TO_ONE
        and len(op.tensors) == len(op.results) == 1
        and op.results[0].dtype == "float32"
        and op.result_bytes == _NARROW.get(op.tensors[0].dtype, 0) * op.tensors[0].bytes
    )


def _settle(
    members: tuple[Operator, ...], type_: MappingType, partition: Partition, book: ClaimBook
) -> None:
    members = tuple(sorted(members, key=lambda op: op.index))
    claim = book.claim(Group(members))
    if not isinstance(claim, Claim):
        raise RuntimeError(f"claimed before its producers were copied, refused after: {claim}")
    partition.replace(Block(members, type_, claim))


def _cone(last: Operator, block: Block) -> tuple[Operator, ...]:
    """Operators of a block that one of them is computed from, in order."""
    inside = set(block.members)
    found = {last}
    frontier = [last]
    while frontier and len(found) <= MAX_COPIED:
        for producer in {v.producer for v in frontier.pop().tensors}:
            if producer in inside and producer not in found:
                found.add(producer)
                frontier.append(producer)
    return tuple(sorted(found, key=lambda op: op.index))


def _rest(
    cone: tuple[Operator, ...], block: Block, served: Container[Operator]
) -> tuple[Operator, ...]:
    """List what a block still needs when some readers have copies of the cone of their own."""
    rest = set(block.members)
    for op in reversed(cone):
        if not any(
            _is_wanted(v, block, served) or not rest.isdisjoint(v.consumers) for v in op.results
        ):
            rest.remove(op)
    return tuple(op for op in block.members if op in rest)


def _is_wanted(value: Value, block: Block, served: Container[Operator]) -> bool:
    """Whether a reader outside of a block needs a result and has no copy of its own."""
    return value.leaves or any(c not in block.members and c not in served for c in value.consumers)


def _results(operators: tuple[Operator, ...]) -> set[Value]:
    return {v for op in operators for v in op.results}


def _is_copyable(cone: tuple[Operator, ...]) -> bool:
    return len(cone) <= MAX_COPIED and all(
        op.type is not MappingType.MANY_TO_MANY and not op.is_opaque and is_cheap(op.func)
        for op in cone
    )
