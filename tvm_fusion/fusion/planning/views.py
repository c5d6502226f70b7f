"""Take reshapes at the borders of groups out of them as views, which need no kernel."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from ...core.contract.template import Claim
from ...ecg.graph import Graph, Operator, Value
from ...program.group import Group
from ..claims import ClaimBook
from ..reshapes import is_view


@dataclass(frozen=True)
class ViewPath:
    """Two operators with nothing between them, or nothing but views."""

    # Neither of them a view.
    producer: Operator
    views: tuple[Operator, ...]  # the views between them, in order
    consumer: Operator
    value: Value  # the result of ``producer`` that the views rename


def view_paths(graph: Graph, views: Collection[Operator]) -> Iterator[ViewPath]:
    """Find what reaches an operator through views, in the order of the readers."""
    for consumer in graph.operators:
        if consumer in views:
            continue
        for value in dict.fromkeys(consumer.tensors):
            between: list[Operator] = []
            while value.producer is not None and value.producer in views:
                between.insert(0, value.producer)
                value = value.producer.tensors[0]
            if between and value.producer is not None:
                yield ViewPath(value.producer, tuple(between), consumer, value)


def trimmed(claim: Claim, book: ClaimBook) -> tuple[Claim | None, list[Operator]]:
    """Let views at the borders of a group out of it.

    Returns
    -------
    Claim or None
        For what is left; None if nothing is.
    """
    views: list[Operator] = []
    while True:
        members = claim.group.members
        if all(is_view(op) for op in members):
            return None, [*views, *members]
        outside = [
            op
            for op in members
            if is_view(op) and _at_border(op, claim.group) and not book.may_lay_out(op)
        ]
        for op in outside:
            left = book.claim(Group(m for m in members if m is not op))
            if isinstance(left, Claim) and book.us(left) <= book.us(claim) * (1 + 1e-9):
                views.append(op)
                claim = left
                break
        else:
            return claim, views


def _at_border(op: Operator, group: Group) -> bool:
    """Whether a view can stand before or after the group without a second copy of its tensor."""
    source, result = op.tensors[0], op.results[0]
    if source in group.inputs:
        # Other members that read the source itself would have the same tensor under two names.
        return not any(c is not op and c in group.members for c in source.consumers)
    inside = any(c in group.members for c in result.consumers)
    return result in group.outputs and not inside
