"""Decisions of the layout stage: the layout of every edge, and every layout kernel left."""

from collections.abc import Sequence

from ..core.decisions import Decision, record
from ..core.names.source import names_of, sources_of
from ..fusion.cost import Estimate
from ..program.layouts import Layout, name_of
from .calls import GroupCall, Tensor
from .choice import Choice

EDGE, KERNEL, COMPARED = "layout", "layout_kernel", "layout_compared"


def record_choice(choice: Choice) -> None:
    """Record one decision per edge that has a layout, and one per layout kernel."""
    for tensor, state in choice.states.items():
        rank = tensor.rank
        for reader in tensor.readers:
            own = [v for v, t in reader.reads.items() if t is tensor]
            layout = choice.reads.get((reader, own[0]))
            record(_edge(tensor, reader, name_of(layout, rank)))
        if len(state) == 2 and tensor not in choice.twice:
            record(_kernel(choice, tensor, state))


def comparison(
    call: GroupCall, names: Sequence[str], estimates: Sequence[Estimate], is_less: bool
) -> Decision:
    """Tell what a convolution takes in two layouts; the second is chosen where it takes less.

    With what else has other layouts then, and the layout kernels around it.
    """
    ways = list(zip(names, estimates, strict=True))
    (name, chosen), (other, refused) = ways[::-1] if is_less else ways
    sentence = (
        f"{_last(call)}, and what depends on it: {chosen.us:.1f} us in {name}, {refused.us:.1f} us "
        f"in {other} ({chosen.origin})."
    )
    us = chosen.us if chosen.source == "measured" else None
    return Decision(
        _last(call), "", "accepted", COMPARED, sentence, measured_us=us, producer_names=_names(call)
    )


def _edge(tensor: Tensor, reader: GroupCall, name: str) -> Decision:
    sentence = f"In memory in {name}."
    return Decision(
        _producer(tensor), _last(reader), "accepted", EDGE, sentence,
        producer_names=_produced(tensor), consumer_names=_names(reader),
    )  # fmt: skip


def _kernel(choice: Choice, tensor: Tensor, state: tuple[Layout | None, ...]) -> Decision:
    rank = tensor.rank
    from_, to = (name_of(layout, rank) for layout in state)
    other = [
        _last(call)
        for call in tensor.readers
        for v, t in call.reads.items()
        if t is tensor and choice.reads.get((call, v)) == state[1]
    ]
    if tensor.producer is None:
        why = "it comes from outside the groups, in the layout of the graph"
    elif tensor.is_fixed:
        why = "something other than a group needs it in the layout of the graph"
    else:
        why = f"its producer writes {from_} faster than both or {to} alone"
    readers = f" for {', '.join(dict.fromkeys(other))}" if other else ""
    sentence = f"A kernel copies {tensor.var.name} from {from_} to {to}{readers}: {why}."
    return Decision(
        _producer(tensor), "", "accepted", KERNEL, sentence, producer_names=_produced(tensor)
    )


def _producer(tensor: Tensor) -> str:
    if tensor.producer is None:
        return str(tensor.var.name)
    return _last(tensor.producer)


def _produced(tensor: Tensor) -> tuple[str, ...]:
    if tensor.producer is None:
        return names_of(sources_of(tensor.var))
    return _names(tensor.producer)


def _names(call: GroupCall) -> tuple[str, ...]:
    """Return the user's names of a group's operators."""
    return names_of(sources_of(call.binding.value))


def _last(call: GroupCall) -> str:
    """Name a group by the variable of its last operator."""
    return str(call.binding.var.name)
