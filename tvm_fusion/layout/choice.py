"""The layouts that were chosen for the tensors of a dataflow block."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..ecg.graph import Value
from ..program.layouts import Layout
from .calls import GroupCall, Tensor
from .states import State


@dataclass(frozen=True, eq=False)
class Choice:
    """Layouts of one dataflow block.

    Attributes
    ----------
    states : mapping of Tensor to State
        Of tensors that are not in the layout of the graph alone.
    reads : mapping of (GroupCall, Value) to Layout or None
        In which layout a call reads an input, for inputs among those tensors.
    twice : set of Tensor
        Those in two layouts that their producer writes itself, so that no kernel copies them.
    """

    states: Mapping[Tensor, State]
    reads: Mapping[tuple[GroupCall, Value], Layout | None]
    twice: frozenset[Tensor]
