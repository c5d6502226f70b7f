"""Reductions over axes, read and written for laws."""

from collections.abc import Sequence

from tvm import relax

from ....core.contract.template import Refusal
from ..head import Head
from ..law import Match
from .extents import aligned, is_one, without_axes

LINEAR = ("sum", "mean")
ORDERS = ("max", "min")


def reduced_axes(head: Head, rank: int) -> list[int]:
    """List the axes of a reduction, counted from the front."""
    axes = None if head.call is None else head.call.attrs.axis
    return list(range(rank)) if axes is None else sorted(int(a) % rank for a in axes)


def keeps_axes(head: Head) -> bool:
    """Whether a reduction leaves axes of extent 1."""
    return head.call is not None and bool(head.call.attrs.keepdims)


def permutation(head: Head, rank: int) -> list[int]:
    """List the axes in the order of a permutation; without one they are reversed."""
    axes = None if head.call is None else head.call.attrs.axes
    return [rank - 1 - i for i in range(rank)] if axes is None else [int(i) % rank for i in axes]


def reduce(
    match: Match, name: str, number: int, axes: Sequence[int], keepdims: bool, law: str
) -> int | None:
    """Add the reduction of a class."""
    make = getattr(relax.op, name.removeprefix("relax."))
    return match.graph.call(lambda x: make(x, list(axes), keepdims), number, law=law)


def renamed(match: Match, head: Head, name: str, number: int, law: str) -> int | None:
    """Add another operator's reduction over the axes of a head."""
    axes = reduced_axes(head, match.graph[number].type.ndim)
    return reduce(match, name, number, axes, keeps_axes(head), law)


def invariant(match: Match, head: Head, data: str, factor: str) -> Refusal | None:
    """Refuse a factor that is not the same for all elements that are reduced to one."""
    rank = max(match.type(data).ndim, match.type(factor).ndim)
    axes = reduced_axes(head, rank)
    if any(axis < rank - match.type(data).ndim for axis in axes):
        return Refusal("lacks_axis", "The other operand lacks a reduced axis.")
    sizes = aligned(match.type(factor), rank)
    if all(is_one(sizes[axis]) for axis in axes):
        return None
    return Refusal("varies", "The operand varies along a reduced axis.")


def inside(match: Match, head: Head, data: str, rank: int, law: str) -> int | None:
    """Reduce a tensor to which broadcasting to a rank may have given axes in front."""
    lead = rank - match.type(data).ndim
    if lead == 0:
        return match.graph.add(head, [match.number(data)], law)
    axes = [axis - lead for axis in reduced_axes(head, rank)]
    return reduce(match, head.name, match.number(data), axes, keeps_axes(head), law)


def outside(match: Match, head: Head, factor: str, rank: int, law: str) -> int | None:
    """Reshape a factor so that it broadcasts against the reduced tensor."""
    if keeps_axes(head):
        return match.number(factor)
    axes = reduced_axes(head, rank)
    return without_axes(match.graph, match.number(factor), axes, rank, law)
