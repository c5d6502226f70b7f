"""Decisions of the layout stage: the layout of every edge, and every layout kernel left."""

from __future__ import annotations

from ..core.decisions import Decision, record
from ..program.layouts import Layout
from .calls import GroupCall, Tensor
from .choice import Choice

EDGE, KERNEL = "layout", "layout_kernel"


def record_choice(choice: Choice) -> None:
    """Record one decision per edge that has a layout, and one per layout kernel."""
    for tensor, state in choice.states.items():
        rank = tensor.rank
        for reader in tensor.readers:
            own = [v for v, t in reader.reads.items() if t is tensor]
            layout = choice.reads.get((reader, own[0]))
            record(_edge(tensor, reader, _name(layout, rank)))
        if len(state) == 2 and tensor not in choice.twice:
            record(_kernel(choice, tensor, state))


def _edge(tensor: Tensor, reader: GroupCall, name: str) -> Decision:
    sentence = f"In memory in {name}."
    return Decision(_producer(tensor), _last(reader), "accepted", EDGE, sentence)


def _kernel(choice: Choice, tensor: Tensor, state: tuple[Layout | None, ...]) -> Decision:
    rank = tensor.rank
    from_, to = (_name(layout, rank) for layout in state)
    other = [
        _last(call)
        for call in tensor.readers
        for v, t in call.reads.items()
        if t is tensor and choice.reads.get((call, v)) == state[1]
    ]
    if tensor.producer is None:
        why = "it comes from outside of the groups in the layout of the graph"
    elif tensor.is_fixed:
        why = "something else than a group needs it in the layout of the graph"
    else:
        why = f"its producer writes {from_} faster than both or {to} alone"
    readers = f" for {', '.join(dict.fromkeys(other))}" if other else ""
    sentence = f"A kernel copies {tensor.var.name} from {from_} to {to}{readers}: {why}."
    return Decision(_producer(tensor), "", "accepted", KERNEL, sentence)


def _producer(tensor: Tensor) -> str:
    if tensor.producer is None:
        return str(tensor.var.name)
    return _last(tensor.producer)


def _last(call: GroupCall) -> str:
    """Name a group by the variable of its last operator."""
    return str(call.binding.var.name)


def _name(layout: Layout | None, rank: int) -> str:
    return "the layout of the graph" if layout is None else layout.name(rank)
