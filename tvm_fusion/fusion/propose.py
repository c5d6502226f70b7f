"""Proposals: sets of operators that a template names itself, ranked by what they save."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..core.template import Refusal, Template
from ..ecg.graph import Graph, Operator
from ..ecg.mapping import MappingType
from .merge import Merger, not_convex, titles
from .partition import Block, Partition


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
    graph : Graph
        What is planned.
    templates : sequence of Template
        Asked for proposals.
    partition : Partition
        The caller replaces blocks in it as they are yielded.
    merger : Merger
        Asked whether a set is convex and claimed, and what it costs; told what is refused.

    Yields
    ------
    Block
        A proposal that saves time.
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
        f"A proposal that saves as much or more has some of these operators: "
        f"{titles(other.members)}.",
    )
