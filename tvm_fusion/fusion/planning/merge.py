"""Decide whether two blocks may be merged; every refusal has a reason."""

from collections.abc import Iterable

from ...core.contract.template import Claim, Refusal
from ...device import Device
from ...ecg.graph import Operator
from ...ecg.mapping_types.table import MappingType, Relation, combine, most_complex
from ...program.group import Group
from ..claims import NOISE, ClaimBook
from ..cost import CostModel, Estimate
from ..refusals import RefusedByAll
from .partition import Block, Estimates, Partition

MAX_MEMBERS = 96  # beyond it a kernel takes longer to compile than it can save
_NAMED = 6  # operators that a sentence names


class Merger:
    """Decides about merges of a partition's blocks."""

    def __init__(self, partition: Partition, book: ClaimBook) -> None:
        self._partition = partition
        self._book = book
        self._rejected: dict[Operator, list[tuple[frozenset[Operator], Refusal]]] = {}

    @property
    def device(self) -> Device:
        """What claims are for."""
        return self._book.device

    def savings(self, block: Block, parts: Iterable[Block]) -> tuple[float, float | None]:
        """Microseconds that a merged block saves: by the model, and measured if that is known."""
        claims = [p.claim for p in parts]
        fused, unfused = self._book.compare([block.claim], claims)
        if fused.source != "measured":
            return unfused.us - fused.us, None
        measured = unfused.us - fused.us
        fused, unfused = self._book.compare([block.claim], claims, may_measure=False)
        return unfused.us - fused.us, measured

    def vertical(self, first: Block, second: Block) -> Block | Refusal:
        """Join a producer and its consumer, as the mapping table says.

        Green cells ask for a claim alone; yellow ones must also not cost more than the parts, and
        so must green ones that would compute something twice.
        """
        for block in (first, second):
            if block.is_opaque or block.type is MappingType.OPAQUE:
                return _opaque(block)
        cell = combine(first.type, second.type)
        if cell.relation is Relation.BREAK:
            return Refusal(
                "mapping_red",
                f"{_class(first)} feeding {_class(second)} is not fused (DNNFusion's mapping "
                f"table), and {self._on_proposals(first, second)}",
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
                "too_many_members",
                f"The group would have {len(members)} operators; at most {MAX_MEMBERS} are fused.",
            )
        between = self._partition.between(blocks)
        if between is not None:
            return not_convex(between)
        claim = self._book.claim(Group(members))
        parts = [b.claim for b in blocks]
        if isinstance(claim, RefusedByAll):
            return claim.nearest({part.template.name for part in parts})
        recomputes = claim.flops_to_price > 1.05 * sum(p.flops_to_price for p in parts)
        # A template may take the parts, but not all of it, in the layout that images will have.
        has_layouts = any(part.laid_out is not None for part in parts)
        because: Estimates | None = None
        must_pay = must_pay or any(part.launches == 0 for part in parts)
        if must_pay or recomputes or has_layouts:
            because = self._book.compare([claim], parts, may_measure=must_pay or recomputes)
            refusal = self._too_expensive(claim, parts, because)
            if _is_tie(*because):  # the model may know what measured times do not
                modelled = self._book.compare([claim], parts, may_measure=False)
                if (refused := self._too_expensive(claim, parts, modelled)) is not None:
                    because, refusal = modelled, refused
            if refusal is not None:
                return refusal
        return Block(members, type_, claim, blocks, because)

    def in_two(self, block: Block) -> Refusal | None:
        """Refuse what costs more than without its last reduction, and that with what follows.

        Growth makes these two of the operators that a proposal is first compared with, one by one.
        Of two halves of one template that template knows best what it saves: two products in one
        kernel are proposed by what was measured of pairs.
        """
        members = block.members
        places = [n for n, op in enumerate(members) if op.type is MappingType.MANY_TO_MANY]
        if len(places) < 2:
            return None
        halves = members[: places[-1]], members[places[-1] :]
        claims = [self._book.claim(Group(half)) for half in halves]
        found = [claim for claim in claims if isinstance(claim, Claim)]
        if len(found) < len(halves) or len({claim.template.name for claim in found}) == 1:
            return None
        because = self._book.compare([block.claim], found, may_measure=False)
        return self._too_expensive(block.claim, found, because)

    def _too_expensive(
        self, claim: Claim, parts: list[Claim], because: Estimates
    ) -> Refusal | None:
        fused, unfused = because
        is_measured = fused.source == "measured"
        slack = NOISE if is_measured else 1e-9
        if any(part.launches == 0 for part in parts):  # for nothing: of equals it is the simpler
            slack = -NOISE
        if fused.us <= unfused.us * (1 + slack):
            return None
        origin, most = fused.origin, ""
        if not is_measured:
            chosen = self._book.cost.chosen
            origin += f": {_differences(chosen(claim), map(chosen, parts))}"
            most = largest_terms(self._book.cost, claim, parts)
        return Refusal(
            "not_profitable",
            f"Fused they would take {fused.us:.1f} us, unfused {unfused.us:.1f} us ({origin})."
            + most,
            fused.us if is_measured else None,
        )

    def reject(self, operators: frozenset[Operator], refusal: Refusal) -> None:
        """Keep the refusal of a template's proposal, to explain the edges inside of it."""
        for op in operators:
            self._rejected.setdefault(op, []).append((operators, refusal))

    def _on_proposals(self, first: Block, second: Block) -> str:
        """Tell of the smallest proposal that has an edge between the two inside."""
        graph, readers = self._partition.graph, set(second.members)
        about = [
            (operators, refusal)
            for op in first.members
            if (read := readers.intersection(graph.successors(op)))
            for operators, refusal in self._rejected.get(op, ())
            if not read.isdisjoint(operators)
        ]
        if not about:
            return "no template proposed to fuse them."
        operators, refusal = min(about, key=lambda proposal: len(proposal[0]))
        # Proposals of many operators differ from edge to edge; the reader has nothing of it.
        what = "them and other operators" if len(operators) > _NAMED else titles(operators)
        return f"a template's proposal to fuse {what} was refused: {refusal.sentence}"


def largest_terms(cost: CostModel, claim: Claim, parts: Iterable[Claim]) -> str:
    """Tell what most of both sides' prices is for."""
    fused, unfused = cost.largest_term([claim]), cost.largest_term(parts)
    return f" Most of it is {fused}; unfused {unfused}." if fused and unfused else ""


def _differences(claim: Claim, parts: Iterable[Claim]) -> str:
    """Tell what makes a kernel cost other than its parts; repeated operations count again."""
    parts = list(parts)
    found = [f"{claim.bytes / max(1, sum(p.bytes for p in parts)):.2f} times the bytes"]
    if flops := sum(p.flops_to_price for p in parts):
        found.insert(0, f"{claim.flops_to_price / flops:.2f} times the operations")
    if claim.parallelism < (most := max(p.parallelism for p in parts)):
        found.append(f"{claim.parallelism} instead of {most} parallel tasks")
    return ", ".join(found)


def _is_tie(fused: Estimate, unfused: Estimate) -> bool:
    """Whether measured times are closer than what they are off by."""
    return fused.source == "measured" and abs(fused.us - unfused.us) <= NOISE * unfused.us


def titles(operators: Iterable[Operator]) -> str:
    """Name operators by their titles, in order; of many the first ones and the last."""
    found = [op.title for op in sorted(operators, key=lambda op: op.index)]
    if len(found) > _NAMED:
        found = [*found[: _NAMED - 2], f"{len(found) - _NAMED + 1} more", found[-1]]
    return " + ".join(found)


def not_convex(between: Block) -> Refusal:
    """Refuse a group that something outside of it both reads and feeds."""
    return Refusal(
        "not_convex",
        f"Fusing them would make a cycle through {titles(between.members)}, which is not among "
        "them: it needs one of them, and another one needs it.",
    )


def _class(block: Block) -> str:
    """Name a block's class with the operators that have it."""
    anchors = [op for op in block.members if op.type is block.type]
    return f"{block.type.value} ({titles(anchors)})" if anchors else block.type.value


def _opaque(block: Block) -> Refusal:
    op = next(op for op in block.members if op.type is MappingType.OPAQUE)
    name = op.name if op.record is None and op.gvar is None else op.title
    return Refusal("opaque", f"{name} is opaque: {op.classification.reason.rstrip('.')}.")
