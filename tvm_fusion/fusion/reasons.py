"""The verdict on every edge of a planned graph, with its reason."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ..core.decisions import Decision
from ..core.template import Refusal
from ..ecg.operator import Edge, Operator
from .partition import Block, Partition
from .views import view_paths

Refused = Mapping[tuple[Block, Block], Refusal]


def reasons(
    partition: Partition, refused: Refused, views: frozenset[Operator]
) -> Iterator[Decision]:
    """Give every edge its verdict, and so every two operators with only views between them.

    Parameters
    ----------
    partition : Partition
        As planning left it.
    refused : Mapping of (Block, Block) to Refusal
        Why two blocks that an edge joins are not one, as it was found when they were tried.
    views : frozenset of Operator
        Operators that need no kernel.

    Yields
    ------
    Decision
        ``classes`` are what the verdict rests on: of a refusal the two groups' classes, which the
        mapping table combines; of an accepted edge its operators'.
    """
    for edge in partition.graph.edges():
        if edge.producer in views or edge.consumer in views:
            view = edge.producer if edge.producer in views else edge.consumer
            sentence = f"{view.name} is a view: it needs no kernel."
            yield _accepted(edge, "view", sentence)
        else:
            yield _verdict(edge, partition, refused)
    for path in view_paths(partition.graph, views):
        decision = _refused([path.producer, *path.views, path.consumer], partition, refused)
        if decision is not None:
            yield decision


def _verdict(edge: Edge, partition: Partition, refused: Refused) -> Decision:
    decision = _refused([edge.producer, edge.consumer], partition, refused)
    if decision is not None:
        return decision
    block = partition.block_of[edge.producer]
    claim = block.claim
    saved = 0 if edge.value in claim.group.outputs else edge.value.bytes
    sentence, us = f"One kernel by {claim.template.name}", None
    because = block.joining(edge.producer, edge.consumer).because
    if because is not None:
        fused, unfused = because
        sentence += f": {fused.us:.1f} us fused, {unfused.us:.1f} us unfused ({fused.origin})"
        us = fused.us if fused.source == "measured" else None
    return _accepted(edge, "fused", f"{sentence}.", saved, us)


def _refused(path: Sequence[Operator], partition: Partition, refused: Refused) -> Decision | None:
    """Say why the first and the last operator of a path share no kernel; None if they do."""
    blocks = list(dict.fromkeys(partition.block_of[op] for op in path))
    if len(blocks) == 1:
        return None
    first, second = blocks[:2]
    refusal = refused[first, second]  # every edge was tried when planning ended
    return Decision(
        path[0].name,
        path[-1].name,
        "refused",
        refusal.code,
        refusal.sentence,
        (first.type.value, second.type.value),
        measured_us=refusal.measured_us,
        through=tuple(op.name for op in path[1:-1]),
    )


def _accepted(
    edge: Edge, code: str, sentence: str, saved: int | None = None, us: float | None = None
) -> Decision:
    ends = edge.producer, edge.consumer
    classes = tuple(op.type.value for op in ends)
    return Decision(ends[0].name, ends[1].name, "accepted", code, sentence, classes, saved, us)
