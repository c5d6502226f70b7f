"""May two blocks become one? Every answer has a reason."""

from __future__ import annotations

from collections.abc import Iterable

from ..core.template import Claim, Refusal
from ..device import Device
from ..ecg.graph import Operator
from ..ecg.mapping import MappingType, Relation, combine, most_complex
from ..program.group import Group
from .claims import ClaimBook, RefusedByAll
from .partition import Block, Partition

MAX_MEMBERS = 96  # beyond it a kernel takes longer to compile than it can save


class Merger:
    """Decides about merges of a partition's blocks.

    Parameters
    ----------
    partition : Partition
        The current state.
    book : ClaimBook
        What templates promise.
    """

    def __init__(self, partition: Partition, book: ClaimBook) -> None:
        self._partition = partition
        self._book = book
        self._turned_down: dict[Operator, list[tuple[frozenset[Operator], Refusal]]] = {}

    @property
    def device(self) -> Device:
        """What claims are for."""
        return self._book.device

    def saving(self, block: Block, parts: Iterable[Block]) -> float:
        """Microseconds that a merged block saves."""
        together, apart = self._book.cost.compare([block.claim], [p.claim for p in parts])
        return apart.us - together.us

    def vertical(self, first: Block, second: Block) -> Block | Refusal:
        """Join a producer and its consumer, as the mapping table says.

        Green cells ask for a claim alone; yellow ones must also not cost more than the parts, and
        so must green ones that would compute something twice.
        """
        if first.is_opaque or second.is_opaque:
            return _opaque(first if first.is_opaque else second)
        cell = combine(first.type, second.type)
        if cell.relation is Relation.BREAK:
            return Refusal(
                "mapping_red",
                f"{first.type.value} feeding {second.type.value} is not fused (mapping table), "
                f"and {self._on_proposals(first, second)}",
            )
        type_ = cell.type or second.type
        return self.join((first, second), type_, cell.relation is Relation.DEPEND)

    def horizontal(self, blocks: Iterable[Block]) -> Block | Refusal:
        """Join blocks that read the same tensor and do not depend on each other."""
        blocks = tuple(blocks)
        for block in blocks:
            if block.is_opaque:
                return _opaque(block)
        return self.join(blocks, most_complex(b.type for b in blocks), True)

    def join(
        self, blocks: tuple[Block, ...], type_: MappingType, must_pay: bool
    ) -> Block | Refusal:
        """Join blocks of any relation if that is legal and claimed (and pays, where it must)."""
        members = tuple(sorted((o for b in blocks for o in b.members), key=lambda o: o.index))
        if len(members) > MAX_MEMBERS:
            return Refusal(
                "too_many_members", f"The group would have more than {MAX_MEMBERS} operators."
            )
        if not self._partition.is_convex(blocks):
            return Refusal(
                "not_convex",
                "Fusing them would make a cycle: a path between the two leads outside.",
            )
        claim = self._book.claim(Group(members))
        parts = [b.claim for b in blocks]
        if isinstance(claim, RefusedByAll):
            return claim.nearest({part.template.name for part in parts})
        recomputes = claim.flops > 1.05 * sum(p.flops for p in parts)
        if must_pay or recomputes:
            refusal = self._too_dear(claim, parts)
            if refusal is not None:
                return refusal
        return Block(members, type_, claim)

    def turn_down(self, operators: frozenset[Operator], refusal: Refusal) -> None:
        """Remember why what a template proposed cannot be, for the edges inside of it."""
        for op in operators:
            self._turned_down.setdefault(op, []).append((operators, refusal))

    def _on_proposals(self, first: Block, second: Block) -> str:
        for op in first.members:
            for operators, refusal in self._turned_down.get(op, ()):
                if not operators.isdisjoint(second.members):
                    return f"a template's proposal of the two was refused: {refusal.sentence}"
        return "no template proposed the two."

    def _too_dear(self, claim: Claim, parts: list[Claim]) -> Refusal | None:
        together, apart = self._book.cost.compare([claim], parts)
        if together.us <= apart.us * (1 + 1e-9):
            return None
        return Refusal(
            "not_profitable",
            f"Fused they would take {together.us:.1f} us, unfused {apart.us:.1f} us "
            f"({together.source}).",
        )


def _opaque(block: Block) -> Refusal:
    op = block.members[0]
    return Refusal("opaque", f"{op.name} is opaque: {op.classification.reason}.")
