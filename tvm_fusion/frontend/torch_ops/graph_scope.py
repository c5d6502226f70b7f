"""What a graph inside a node of torch's reads, as :mod:`..control_flow` asks for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import fx

from .python_numbers import as_tensor


class Scope:
    """What :mod:`..control_flow` asks of an importer: the builder, and values by name.

    Parameters
    ----------
    values : dict of str to object
        What the graphs of a node read from around it.
    """

    def __init__(self, importer: Any, values: dict[str, Any]):
        self.importer, self.values, self.bb = importer, values, importer.block_builder

    @property
    def copies(self) -> int:
        """How often the graph around is unrolled."""
        return int(self.importer.copies)

    @copies.setter
    def copies(self, value: int) -> None:
        self.importer.copies = value

    def read(self, names: Sequence[str], inside: Any) -> list[Any]:
        """Read values by name: from around the node, or as the arguments of a function inside."""
        values = self.values if inside is None else inside
        return [values[name] for name in names]

    def as_tensor(self, value: Any) -> Any:
        """Make a tensor of a tensor, a number or an extent."""
        return as_tensor(self.importer, value)


def scope_of(importer: Any, node: fx.Node, given: Sequence[Any]) -> tuple[Scope, list[str]]:
    """Rename what a node's graphs read to names of its own; return these, too."""
    values = [importer._retrieve_args(argument) for argument in given]
    names = [f"{node.name}_reads_{i}" for i in range(len(values))]
    return Scope(importer, dict(zip(names, values, strict=True))), names


def size_of(*graphs: fx.GraphModule) -> int:
    """Count the operators of graphs, those inside their nodes included."""
    return sum(
        node.op == "call_function"
        for graph in graphs
        for module in graph.modules()
        if isinstance(module, fx.GraphModule)
        for node in module.graph.nodes
    )
