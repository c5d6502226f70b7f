"""Producers that write both layouts of a tensor, where a copy costs more."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ..core.template import Claim
from ..ecg.graph import Value
from ..fusion.claims import ClaimBook
from ..program.layouts import Layout
from ..program.variant import variant
from .calls import GroupCall, Tensor
from .choice import Choice, layout_of
from .costs import copy_cost

# Times that a copy takes what its claim says, against the same of a kernel that stores both: 40 us
# against 17 where the stride of lines is a power of two, 14 as claimed elsewhere, on two Zen 5
# cores, and threads wait for each other once more. The UNet of the zoo has none left.
COPY = 2.0


def writing_twice(choice: Choice, calls: Iterable[GroupCall], book: ClaimBook) -> Choice:
    """Let producers write both layouts of a tensor, where a copy costs more.

    On a CPU, whose threads wait for each other after every kernel; on GPUs it is unmeasured.
    """
    found: set[Tensor] = set()
    if book.device.kind != "llvm":
        return choice
    for call in calls:
        both = [v for v, t in call.writes.items() if len(choice.states.get(t, ())) == 2]
        layouts = choice.layouts(call) if both else {}
        before = _us(call, layouts, (), book) if both else 0.0
        chosen: list[Value] = []
        for value in both:
            tensor = call.writes[value]
            state = choice.states[tensor]
            layout = layout_of(state)
            assert layout is not None
            copy = copy_cost(value, layout, state[1] is None, book)
            more = {**layouts, value: layout}
            after = _us(call, more, (*chosen, value), book)
            if after <= before + COPY * copy:
                layouts, before = more, after
                chosen.append(value)
                found.add(tensor)
    return replace(choice, twice=frozenset(found))


def _us(
    call: GroupCall, layouts: Mapping[Value, Layout], twice: Sequence[Value], book: ClaimBook
) -> float:
    claim = book.claim(variant(call.group, layouts, twice=twice).group)
    return book.us(claim) if isinstance(claim, Claim) else math.inf
