"""Which layouts a call reads, of those that its tensors are in, and what that costs.

A tensor's state says in which layouts it is in memory: one, as its producer writes it, or a second
one besides. Of a tensor that is there in two a call reads the one with which it is faster.
"""

import itertools
from collections.abc import Sequence

import numpy as np

from ..program.layouts import Layout
from .calls import GroupCall, Tensor
from .costs import Assignment, GroupCosts

State = tuple[Layout | None, ...]  # layouts in memory; the producer writes the first

MOST_IMAGES = 5  # of a group whose assignments are asked for one by one


def states_of(tensor: Tensor, layout: Layout) -> list[State]:
    """List the states that a tensor may be in.

    The only result of a group may be written in a layout first also where something else reads it.
    """
    kept: list[State] = [(None,), (None, layout)]
    if not tensor.is_fixed:
        return [*kept, (layout,), (layout, None)]
    is_only = tensor.producer is not None and len(tensor.producer.group.outputs) == 1
    return [*kept, (layout, None)] if is_only else kept


def best_costs(
    call: GroupCall, costs: GroupCosts, domains: Sequence[Sequence[State]]
) -> np.ndarray:
    """Tabulate the cost of :func:`best` over the states of all images, an axis for each."""
    assignments = itertools.product(*((None, layout) for layout in costs.all))
    table = np.array([costs.cost(one) for one in assignments]).reshape([2] * len(costs.images))
    for axis, (value, states) in enumerate(zip(costs.images, domains, strict=True)):
        options = [state if value in call.reads else state[:1] for state in states]
        taken = [[table.take(layout is not None, axis) for layout in some] for some in options]
        table = np.stack([np.min(some, axis=0) for some in taken], axis)
    return table


def best(call: GroupCall, costs: GroupCosts, states: Sequence[State]) -> tuple[Assignment, float]:
    """Choose in which of their layouts a call reads tensors; it writes the first."""
    options = [
        state if value in call.reads else state[:1]
        for value, state in zip(costs.images, states, strict=True)
    ]
    if len(costs.images) > MOST_IMAGES:
        # Each operand in the layout of the result if it is there.
        like = states[-1][0]
        used = tuple(like if like in some else some[0] for some in options)
        return used, costs.cost(used)
    return min(((one, costs.cost(one)) for one in itertools.product(*options)), key=lambda x: x[1])
