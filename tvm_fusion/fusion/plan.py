"""Planning: which operators share kernels, from proposals over seeds to leftover pairs.

After DNNFusion (PLDI 2021, listing 1): a seed is the One-to-One operator with the smallest
intermediate result; it grows over its producers and consumers as the mapping table allows. Added to
the paper: templates propose what growth cannot find; anchors that no seed reached get their turn;
blocks stay convex; siblings that read one tensor may share a kernel, and so may equal blocks that
have nothing to do with each other; a group is legal only if a template claims it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from ..core.decisions import Decision, record
from ..core.template import Claim, Refusal, Template
from ..ecg.graph import Graph, Operator, Value
from ..ecg.mapping import MappingType
from ..program.group import Group
from .claims import ClaimBook
from .merge import Merger
from .partition import Block, Partition
from .propose import accepted_proposals
from .reasons import reasons
from .recompute import recompute, widens
from .reshapes import is_view
from .views import trimmed

_SIBLINGS = 8  # consumers of one tensor that are tried with each other: pairs grow quadratically


@dataclass(frozen=True)
class Plan:
    """The result of planning one graph.

    Attributes
    ----------
    graph : Graph
        What was planned.
    claims : tuple of Claim
        One per group, in the order of the groups' first operators.
    views : tuple of Operator
        Operators that only rename the elements of a buffer and need no kernel.
    decisions : tuple of Decision
        Why, for every edge of the graph, and for every two operators with nothing but views
        between them.
    """

    graph: Graph
    claims: tuple[Claim, ...]
    views: tuple[Operator, ...]
    decisions: tuple[Decision, ...]

    @property
    def groups(self) -> list[Group]:
        """The groups, in order."""
        return [claim.group for claim in self.claims]


def plan(graph: Graph, templates: Sequence[Template], book: ClaimBook) -> Plan:
    """Plan the groups of one graph.

    Parameters
    ----------
    graph : Graph
        Of one dataflow block.
    templates : sequence of Template
        Asked for proposals.
    book : ClaimBook
        Asked for claims.

    Returns
    -------
    Plan
        Every operator that is not opaque is in one group or a view.
    """
    planner = _Planner(graph, book)
    planner.propose(templates)
    planner.grow()
    planner.pair()
    return planner.finish()


class _Planner:
    def __init__(self, graph: Graph, book: ClaimBook) -> None:
        self._graph = graph
        self._book = book
        self._partition = Partition(graph)
        self._merger = Merger(self._partition, book)
        self._grown: set[Block] = set()
        self._refused: dict[tuple[Block, Block], Refusal] = {}
        for block in self._partition.blocks:
            if not block.is_opaque:
                claim = book.claim(Group(block.members))
                if isinstance(claim, Refusal):
                    raise RuntimeError(f"{block.name} alone is refused: {claim.sentence}")
                self._partition.replace(Block(block.members, block.type, claim))

    # Proposals -----------------------------------------------------------------------------------

    def propose(self, templates: Sequence[Template]) -> None:
        """Take the proposals of templates that save most, as blocks to begin with."""
        for block in accepted_proposals(self._graph, templates, self._partition, self._merger):
            self._partition.replace(block)

    # Seeds ---------------------------------------------------------------------------------------

    def grow(self) -> None:
        """Grow every seed, then every anchor that no seed reached."""
        seeds = [op for op in self._graph.operators if op.type is MappingType.ONE_TO_ONE]
        others = [op for op in self._graph.operators if op.type is not MappingType.ONE_TO_ONE]
        for op in sorted(seeds, key=lambda op: (op.result_bytes, op.index)):
            self._grow(op)
        for op in sorted(others, key=lambda op: (op.type.complexity, op.result_bytes, op.index)):
            self._grow(op)

    def _grow(self, seed: Operator) -> None:
        block = self._partition.block_of[seed]
        if block.is_opaque or block in self._grown:
            return
        # Producers first: an epilogue costs its producer nothing, whereas a prologue is computed
        # again for every element that its consumer reads more than once. Not so a cast from a half
        # type, behind which twice the bytes would be stored: that waits for its consumer.
        if not _widens(block):
            block = self._backwards(block, seed)
        for successor in self._partition.successors(block):
            block = self._forwards(block, successor)
        self._grown.add(block)

    def _backwards(self, block: Block, op: Operator) -> Block:
        for before in self._graph.predecessors(op):
            producer = self._partition.block_of[before]
            if producer is block or producer in self._grown:
                continue
            merged = self._merger.vertical(producer, block)
            if isinstance(merged, Block):
                self._partition.replace(merged)
                block = merged
                # What feeds an anchor is a prologue: its own seeds decide about it first.
                if producer.type is not MappingType.MANY_TO_MANY:
                    for member in producer.members:
                        block = self._backwards(block, member)
        return block

    def _forwards(self, block: Block, consumer: Block) -> Block:
        if consumer in self._grown or self._partition.block_of[consumer.members[0]] is not consumer:
            return block
        if _widens(consumer):
            return block
        merged = self._merger.vertical(block, consumer)
        if isinstance(merged, Block):
            self._partition.replace(merged)
            block = merged
            after = dict.fromkeys(s for op in consumer.members for s in self._graph.successors(op))
            for successor in self._partition.blocks_of(after):
                if successor is not self._partition.block_of[consumer.members[0]]:
                    block = self._forwards(block, successor)
        return block

    # Leftover pairs ------------------------------------------------------------------------------

    def pair(self) -> None:
        """Join what is left: along edges, then siblings, then cheap producers into all readers.

        Where nothing of that is left, equal blocks that have nothing to do with each other.
        """
        changed = True
        refused = self._refused
        while changed:
            changed = False
            for first, second, is_edge in self._pairs():
                block_of = self._partition.block_of
                stale = block_of[first.members[0]] is not first or (
                    block_of[second.members[0]] is not second
                )
                if stale or (first, second) in refused:
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
                    refused[first, second] = merged
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
                if size < _SIBLINGS and (grown, block) not in self._refused:
                    merged = self._merger.horizontal((grown, block))
                if isinstance(merged, Refusal):
                    self._refused[grown, block] = merged
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
                near = readers[:_SIBLINGS]
                for i, first in enumerate(near):
                    for second in near[i + 1 :]:
                        key = (first, second, False)
                        found[key] = found.get(key, 0) + value.bytes
        return sorted(found, key=lambda k: (not k[2], -found[k], k[0].first, k[1].first))

    # Result --------------------------------------------------------------------------------------

    def finish(self) -> Plan:
        """Let views out of the groups, and give every edge its reason."""
        claims: list[Claim] = []
        views: list[Operator] = []
        for block in self._partition.blocks:
            if block.is_opaque:
                continue
            claim, outside = trimmed(block.claim, self._book)
            views.extend(outside)
            if claim is not None:
                claims.append(claim)
        decisions = list(reasons(self._partition, self._refused, frozenset(views)))
        for decision in decisions:
            record(decision)
        return Plan(self._graph, tuple(claims), tuple(views), tuple(decisions))


def _widens(block: Block) -> bool:
    """Whether a block does nothing but cast a tensor of a half type to a wider one."""
    return len(block.members) == 1 and widens(block.members[0])
