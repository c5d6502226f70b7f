"""Merge blocks that seeds have left over, pair by pair, until nothing changes.

edges        a producer and one of its consumers, those between which most bytes go first
siblings     consumers of one tensor
recomputed   a cheap producer, into all of its readers
alike        where nothing of that is left, blocks of one kind that need nothing of each other
"""

from collections.abc import Hashable, Iterable

from ...core.contract.template import Refusal
from ...ecg.graph import Graph, Value
from ..claims import ClaimBook
from ..reshapes import is_view
from .merge import Merger
from .partition import Block, Partition
from .recompute import recompute

_SIBLINGS = 8  # consumers of one tensor, in order, that are tried with each other


class LeftoverPairs:
    """Joins the blocks of a partition.

    Parameters
    ----------
    partition
        Its blocks, which are replaced.
    merger
        Joins two blocks, or says why not.

    Attributes
    ----------
    refused : dict of (Block, Block) to Refusal
        Why two blocks stay separate.
    """

    def __init__(self, graph: Graph, partition: Partition, merger: Merger, book: ClaimBook) -> None:
        self._graph, self._partition = graph, partition
        self._merger, self._book = merger, book
        self.refused: dict[tuple[Block, Block], Refusal] = {}

    def join(self) -> None:
        """Join blocks until no two can be joined."""
        changed = True
        while changed:
            changed = False
            for first, second, is_edge in self._pairs():
                block_of = self._partition.block_of
                stale = block_of[first.members[0]] is not first or (
                    block_of[second.members[0]] is not second
                )
                if stale or (first, second) in self.refused:
                    continue
                merged = (
                    self._merger.vertical(first, second)
                    if is_edge
                    else self._merger.horizontal((first, second))
                )
                if isinstance(merged, Block):
                    self._partition.replace(merged)
                    changed = True
                else:
                    self.refused[first, second] = merged
            for value in self._crossing():
                if value.consumers and recompute(value, self._partition, self._book):
                    changed = True
            if not changed:
                changed = self._group()

    def _group(self) -> bool:
        """Join alike blocks that need nothing of each other: one launch does the work of several.

        AITemplate's group GEMM and group layer norm. Neighbours of a kind, which is of one
        structure unless their template says otherwise, are tried, in order.
        """
        alike: dict[Hashable, list[Block]] = {}
        for block in self._partition.blocks:
            if not block.is_opaque and not all(map(is_view, block.members)):
                alike.setdefault(block.claim.template.kind(block.claim), []).append(block)
        changed = False
        for blocks in alike.values():
            grown, size = blocks[0], 1
            for block in blocks[1:]:
                merged: Block | Refusal | None = None
                if size < _SIBLINGS and (grown, block) not in self.refused:
                    merged = self._merger.horizontal((grown, block))
                if isinstance(merged, Refusal):
                    self.refused[grown, block] = merged
                if isinstance(merged, Block):
                    self._partition.replace(merged)
                    grown, size, changed = merged, size + 1, True
                else:
                    grown, size = block, 1
        return changed

    def _crossing(self) -> list[Value]:
        """Tensors that go from one block to another, largest first."""
        block_of = self._partition.block_of
        found = {
            e.value for e in self._graph.edges() if block_of[e.producer] is not block_of[e.consumer]
        }
        return sorted(found, key=lambda v: (-v.bytes, v.name))

    def _pairs(self) -> Iterable[tuple[Block, Block, bool]]:
        block_of = self._partition.block_of
        found: dict[tuple[Block, Block, bool], int] = {}
        values = dict.fromkeys(v for op in self._graph.operators for v in op.tensors)
        for value in values:
            readers = self._partition.blocks_of(value.consumers)
            if value.producer is not None:
                producer = block_of[value.producer]
                for reader in readers:
                    if reader is not producer:
                        key = (producer, reader, True)
                        found[key] = found.get(key, 0) + value.bytes
            if not value.is_parameter:
                for i, first in enumerate(readers):
                    for second in readers[i + 1 : i + _SIBLINGS]:
                        key = (first, second, False)
                        found[key] = found.get(key, 0) + value.bytes
        return sorted(found, key=lambda k: (not k[2], -found[k], k[0].first, k[1].first))
