"""The state of planning: disjoint blocks that cover a graph, and which of them may be joined."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from ...core.contract.template import Claim
from ...ecg.graph import Graph, Operator
from ...ecg.mapping_types.table import MappingType
from ..cost import Estimate

Estimates = tuple[Estimate, ...]  # of a block, then of its parts together


@dataclass(eq=False)
class Block:
    """Operators that are to share kernels.

    Attributes
    ----------
    members
        In order.
    type
        Of the whole, from the mapping table.
    claim
        Not there for an opaque operator.
    parts
        What it was joined from, if it was.
    because
        What it and its parts cost, where that was compared.
    """

    members: tuple[Operator, ...]
    type: MappingType
    _claim: Claim | None = None
    parts: tuple[Block, ...] = ()
    because: Estimates | None = None

    @property
    def claim(self) -> Claim:
        """What a template promises for it."""
        if self._claim is None:
            raise ValueError(f"{self.name} is opaque: no template claims it")
        return self._claim

    def joining(self, first: Operator, second: Operator) -> Block:
        """Find the smallest block, of those it was joined from, that has two of its members."""
        for part in self.parts:
            if first in part.members and second in part.members:
                return part.joining(first, second)
        return self

    @property
    def is_opaque(self) -> bool:
        """Whether it is a node that no template can take."""
        return self.members[0].is_opaque

    @property
    def first(self) -> int:
        """Position of its first operator."""
        return self.members[0].index

    @property
    def last(self) -> int:
        """Position of its last operator."""
        return self.members[-1].index

    @property
    def name(self) -> str:
        """Variables of its first and last operator, for a reader."""
        first, last = self.members[0], self.members[-1]
        return first.name if first is last else f"{first.name}..{last.name}"


class Partition:
    """Blocks over a graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.block_of: dict[Operator, Block] = {op: Block((op,), op.type) for op in graph.operators}
        # Blocks that feed an operator there or before, and have a member behind.
        self._spanning: Counter[int] = Counter()
        self._leads: dict[Block, float] = {}

    @property
    def blocks(self) -> list[Block]:
        """All blocks, in the order of their first operators."""
        return list(dict.fromkeys(self.block_of[op] for op in self.graph.operators))

    def replace(self, block: Block) -> None:
        """Let a block take the place of all that its members were in, none of them in part."""
        for old in dict.fromkeys(self.block_of.get(op) for op in block.members):
            if old is not None:
                self._spanning.subtract(self._span(old))
        for op in block.members:
            self.block_of[op] = block
        self._leads.pop(block, None)
        self._spanning.update(self._span(block))

    def _span(self, block: Block) -> range:
        return range(int(min(self._leads_to(block), block.last)), block.last)

    def _leads_to(self, block: Block) -> float:
        """Position of the first operator that a block feeds, kept from when it was made.

        The mask of an attention stands far before it, which does not let anything behind it lead
        back: no other block reads it.
        """
        if block not in self._leads:
            dependents, own = self.graph.dependents, set(block.members)
            readers = [s.index for op in block.members for s in dependents[op] if s not in own]
            self._leads[block] = min(readers, default=float("inf"))
        return self._leads[block]

    def drop(self, operators: Iterable[Operator]) -> None:
        """Forget operators that are gone, before what is left of their block takes its place."""
        for op in operators:
            del self.block_of[op]

    def predecessors(self, block: Block) -> list[Block]:
        """Blocks that must come before, without duplicates."""
        return self._around(block, self.graph.predecessors)

    def successors(self, block: Block) -> list[Block]:
        """Blocks that must come after, without duplicates."""
        return self._around(block, self.graph.dependents.__getitem__)

    def blocks_of(self, operators: Iterable[Operator]) -> list[Block]:
        """Blocks of some operators, without duplicates."""
        return list(dict.fromkeys(self.block_of[op] for op in operators))

    def between(self, blocks: Iterable[Block]) -> Block | None:
        """Find a block that both depends on and feeds some others, which then cannot become one.

        The paper's listing lacks this check; a skip connection fused around its own branch would
        wait for itself.
        """
        inside = set(blocks)
        horizon = max(b.last for b in inside)
        ordered = sorted(inside, key=lambda block: block.first)  # the same one in every run
        frontier = [s for b in ordered for s in self.successors(b) if s not in inside]
        seen = set(frontier)
        while self._spanning[horizon]:  # what leads behind a point that no block spans never leads
            horizon += 1  # back across it
        while frontier:
            block = frontier.pop()
            if self._leads_to(block) > horizon:
                continue
            for successor in self.successors(block):
                if successor in inside:
                    return block
                if successor not in seen:
                    seen.add(successor)
                    frontier.append(successor)
        return None

    def _around(self, block: Block, neighbours) -> list[Block]:
        found: dict[Block, None] = {}
        for op in block.members:
            for other in neighbours(op):
                neighbour = self.block_of[other]
                if neighbour is not block:
                    found[neighbour] = None
        return list(found)
