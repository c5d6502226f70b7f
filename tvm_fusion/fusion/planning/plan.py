"""Planning: which operators share kernels, from proposals over seeds to leftover pairs.

After DNNFusion (PLDI 2021, listing 1): a seed is the One-to-One operator with the smallest
intermediate result; it grows over its producers and consumers as the mapping table allows. Added to
the paper: templates propose what growth cannot find; anchors that no seed reached get their turn;
blocks stay convex; siblings that read one tensor may share a kernel, and so may equal blocks that
have nothing to do with each other; a group is legal only if a template claims it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ...core.contract.template import Claim, Refusal, Template
from ...core.decisions import Decision, record
from ...core.names.source import names_of
from ...core.once import remembering_answers
from ...core.progress import steps
from ...ecg.graph import Graph, Operator
from ...ecg.mapping_types.table import MappingType
from ...ecg.operator import Edge
from ...program.group import Group
from ..claims import ClaimBook
from ..cost import CostModel
from .leftover_pairs import LeftoverPairs
from .merge import Merger, largest_terms, not_convex, titles
from .partition import Block, Partition
from .position_masks import PositionMasks
from .recompute import widens
from .views import trimmed, view_paths


@dataclass(frozen=True)
class Plan:
    """The result of planning one graph."""

    graph: Graph  # what was planned
    claims: tuple[Claim, ...]  # one per group, in the order of the groups' first operators
    # Operators that only rename the elements of a buffer and need no kernel.
    views: tuple[Operator, ...]
    # Why, for every edge of the graph, and for every two operators with nothing but views between
    # them.
    decisions: tuple[Decision, ...]

    @property
    def groups(self) -> list[Group]:
        """The groups, in order."""
        return [claim.group for claim in self.claims]


def plan(
    graph: Graph, templates: Sequence[Template], book: ClaimBook, *, gives_reasons: bool = True
) -> Plan:
    """Plan the groups of one graph.

    Parameters
    ----------
    gives_reasons
        Whether every edge gets its decision; who compares prices needs none.

    Returns
    -------
    Plan
        Every operator that is not opaque is in one group or a view.
    """
    with remembering_answers(book.answers):
        planner = _Planner(graph, book)
        planner.propose(templates)
        planner.grow()
        planner.pair()
        return planner.finish(gives_reasons)


class _Planner:
    def __init__(self, graph: Graph, book: ClaimBook) -> None:
        self._graph = graph
        self._book = book
        self._masks = PositionMasks(graph)
        self._partition = Partition(graph)
        self._merger = Merger(self._partition, book)
        self._grown: set[Block] = set()
        self._pairs = LeftoverPairs(graph, self._partition, self._merger, book)
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
        self._masks.share_again(self._partition, self._book)

    # Seeds ---------------------------------------------------------------------------------------

    def grow(self) -> None:
        """Grow every seed, then every anchor that no seed reached."""
        seeds = [op for op in self._graph.operators if op.type is MappingType.ONE_TO_ONE]
        others = [op for op in self._graph.operators if op.type is not MappingType.ONE_TO_ONE]
        seeds.sort(key=lambda op: (op.result_bytes, op.index))
        others.sort(key=lambda op: (op.type.complexity, op.result_bytes, op.index))
        for op in steps("fusing operators", [*seeds, *others]):
            self._grow(op)

    def _grow(self, seed: Operator) -> None:
        block = self._partition.block_of[seed]
        if block.is_opaque or block in self._grown:
            return
        # Producers first: an epilogue costs its producer nothing, whereas a prologue is computed
        # again for every element that its consumer reads more than once. Not so what makes floats
        # of a half type or of bytes, and would be stored at their size: it waits for its consumer.
        if _repeats(seed):
            block = self._to_readers(block)
        elif not _widens(block):
            block = self._backwards(block, seed)
        for successor in self._partition.successors(block):
            block = self._forwards(block, successor)
        self._grown.add(block)

    def _to_readers(self, block: Block) -> Block:
        for reader in self._partition.successors(block):
            merged = self._merger.vertical(block, reader)
            if isinstance(merged, Block):
                self._partition.replace(merged)
                block = merged
        return block

    def _backwards(self, block: Block, op: Operator) -> Block:
        for before in self._graph.predecessors(op):
            producer = self._partition.block_of[before]
            # Growth forwards stopped in front of what widens, which its consumer asks for.
            is_closed = producer in self._grown and not widens(op)
            if producer is block or is_closed:
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
        if _widens(consumer) or (len(consumer.members) == 1 and _repeats(consumer.members[0])):
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
        """Join what is left, pair by pair."""
        self._pairs.join()

    # Result --------------------------------------------------------------------------------------

    def finish(self, gives_reasons: bool) -> Plan:
        """Let views out of the groups, and give every edge its reason."""
        claims: list[Claim] = []
        views: list[Operator] = []
        for block in self._partition.blocks:
            if block.is_opaque:
                continue
            claim, outside = trimmed(block.claim, self._book)
            views.extend(outside)
            if claim is not None:
                claims.append(self._book.measured_best(claim))
        decisions: list[Decision] = []
        if gives_reasons:
            refused = self._pairs.refused
            decisions += reasons(self._partition, refused, frozenset(views), self._book.cost)
        for decision in decisions:
            record(decision)
        return Plan(self._graph, tuple(claims), tuple(views), tuple(decisions))


def _repeats(op: Operator) -> bool:
    """Whether an operator maps a tensor that others read, too, for reductions alone.

    Such as magnitudes, whose maximum scales the numbers themselves: they are computed by what reads
    both, where in the producer's kernel they would be a second result as large as the first.
    """
    if op.type is not MappingType.ONE_TO_ONE or len(op.tensors) != 1 or len(op.results) != 1:
        return False
    (value,), (result,) = op.tensors, op.results
    readers = result.consumers
    is_read = len(dict.fromkeys(value.consumers)) > 1 and value.producer is not None
    is_reduced = all(reader.type is MappingType.MANY_TO_MANY for reader in readers)
    return is_read and bool(readers) and is_reduced and not result.leaves


def _widens(block: Block) -> bool:
    """Whether a block does nothing but make floats of a narrow type."""
    return len(block.members) == 1 and widens(block.members[0])


# The verdict on every edge of a planned graph, with its reason.
Refused = Mapping[tuple[Block, Block], Refusal]


def reasons(
    partition: Partition, refused: Refused, views: frozenset[Operator], cost: CostModel
) -> Iterator[Decision]:
    """Yield a verdict for every edge, and for every two operators with only views between them.

    Parameters
    ----------
    refused : Mapping of (Block, Block) to Refusal
        Why two blocks that an edge joins are not one, as it was found when they were tried.
    views
        Operators that need no kernel.
    cost
        Tells what most of a price is for.

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
            yield _verdict(edge, partition, refused, cost)
    for path in view_paths(partition.graph, views):
        decision = _refused([path.producer, *path.views, path.consumer], partition, refused)
        if decision is not None:
            yield decision


def _verdict(edge: Edge, partition: Partition, refused: Refused, cost: CostModel) -> Decision:
    reader = partition.block_of[edge.consumer]
    if not reader.is_opaque and reader.claim.launches == 0:
        sentence = f"{edge.consumer.name} needs no kernel: this one stores its part of it."
        return _accepted(edge, "stored_in_place", sentence)
    decision = _refused([edge.producer, edge.consumer], partition, refused)
    if decision is not None:
        return decision
    block = partition.block_of[edge.producer]
    claim = block.claim
    saved = 0 if edge.value in claim.group.outputs else edge.value.bytes
    sentence, us, most = f"One kernel by {claim.template.name}", None, ""
    joint = block.joining(edge.producer, edge.consumer)
    if joint.because is not None:
        fused, unfused = joint.because
        sentence += f": {fused.us:.1f} us fused, {unfused.us:.1f} us unfused ({fused.origin})"
        us = fused.us if fused.source == "measured" else None
        if us is None:
            most = largest_terms(cost, joint.claim, [part.claim for part in joint.parts])
    return _accepted(edge, "fused", f"{sentence}.{most}", saved, us)


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
        producer_names=names_of(path[0].sources),
        consumer_names=names_of(path[-1].sources),
    )


def _accepted(
    edge: Edge, code: str, sentence: str, saved: int | None = None, us: float | None = None
) -> Decision:
    ends = edge.producer, edge.consumer
    classes = tuple(op.type.value for op in ends)
    names = (names_of(op.sources) for op in ends)
    return Decision(
        ends[0].name, ends[1].name, "accepted", code, sentence, classes, saved, us, (), *names
    )


# Proposals: sets of operators that a template names itself, ranked by what they save.
def accepted_proposals(
    graph: Graph, templates: Sequence[Template], partition: Partition, merger: Merger
) -> Iterator[Block]:
    """Take proposals in the order of the time they save, as long as they are free and claimed.

    Savings are measured where all of them are, else the model's: a small proposal without a
    measurement is no better than a large one because the model is off.

    Claims are not monotone: a template may refuse every pair inside of a set that it takes as a
    whole, so growth alone would never find it.

    Parameters
    ----------
    partition
        The caller replaces blocks in it as they are yielded.
    merger
        Asked whether a set is convex and claimed, and what it costs; told what is refused.
    """
    candidates = dict.fromkeys(
        frozenset(ops) for template in templates for ops in template.propose(graph, merger.device)
    )
    claimed: list[tuple[Block, float, float | None]] = []
    for operators in candidates:
        if len(operators) < 2 or any(op.is_opaque for op in operators):
            continue  # the edges around an opaque operator are refused for its sake
        members = sorted(operators, key=lambda op: op.index)  # a set has another order every time
        parts = tuple(partition.blocks_of(members))
        block = merger.join(parts, MappingType.MANY_TO_MANY, must_pay=True)
        if isinstance(block, Block):
            block = merger.in_two(block) or block
        if isinstance(block, Block):
            claimed.append((block, *merger.savings(block, parts)))
        else:
            merger.reject(operators, block)
    is_measured = all(measured is not None for _, _, measured in claimed)

    def rank(entry: tuple[Block, float, float | None]) -> tuple[float, int]:
        block, saved, measured = entry
        return -(measured or 0.0) if is_measured else -saved, block.first

    taken: dict[Operator, Block] = {}
    for block, _, _ in sorted(claimed, key=rank):
        other = next((taken[op] for op in block.members if op in taken), None)
        # Blocks that were taken meanwhile may have closed a path around this one.
        between = partition.between(partition.blocks_of(block.members)) if other is None else None
        if other is not None:
            merger.reject(frozenset(block.members), _overlaps(other))
        elif between is not None:
            merger.reject(frozenset(block.members), not_convex(between))
        else:
            taken.update(dict.fromkeys(block.members, block))
            yield block


def _overlaps(other: Block) -> Refusal:
    return Refusal(
        "better_proposal",
        f"A proposal that saves at least as much has some of these operators: "
        f"{titles(other.members)}.",
    )
