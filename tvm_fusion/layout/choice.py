"""The layouts that were chosen for the tensors of a dataflow block."""

from collections.abc import Mapping
from dataclasses import dataclass

from ..ecg.graph import Value
from ..program.layouts import Layout
from .calls import GroupCall, Tensor
from .states import State


@dataclass(frozen=True, eq=False)
class Choice:
    """Layouts of one dataflow block."""

    states: Mapping[Tensor, State]  # of tensors that are not in the layout of the graph alone
    # In which layout a call reads an input, for inputs among those tensors.
    reads: Mapping[tuple[GroupCall, Value], Layout | None]
    # Those in two layouts that their producer writes itself, so that no kernel copies them.
    twice: frozenset[Tensor]

    def layouts(self, call: GroupCall) -> dict[Value, Layout]:
        """Return the inputs and outputs of a call that are in a layout, and which."""
        found = {v: self.reads.get((call, v)) for v in call.reads}
        for value, tensor in call.writes.items():
            state = self.states.get(tensor, (None,))
            found[value] = layout_of(state) if tensor in self.twice else state[0]
        return {v: layout for v, layout in found.items() if layout is not None}

    def written_twice(self, call: GroupCall) -> list[Value]:
        """List the outputs of a call that it writes in two layouts."""
        return [v for v, tensor in call.writes.items() if tensor in self.twice]


def layout_of(state: State) -> Layout | None:
    """Return the layout of a state that is not that of the graph."""
    return next((layout for layout in state if layout is not None), None)
