"""Generated graphs: leaves and operator calls over numbered values, and their Relax module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx

from .dims import Dim, Env, Extent, resolve
from .dtypes import FLOATS, HALVES
from .operators import OPERATORS


@dataclass(frozen=True)
class Leaf:
    """A parameter or a constant."""

    value: int  # the number of the value
    shape: tuple[Extent, ...]
    dtype: str
    data: tuple[np.ndarray, ...]  # one array per instantiation; a constant has one alone
    constant: bool = False

    def at(self, instantiation: int) -> np.ndarray:
        """Return the array at one instantiation."""
        return self.data[0 if self.constant else instantiation]


@dataclass(frozen=True)
class Node:
    """A call of an operator; ``attrs`` may hold symbolic dimensions."""

    operator: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Graph:
    """Leaves, nodes in topological order, and the values returned.

    ``types`` holds shape and dtype by value, ``envs`` the instantiations of the symbols.
    """

    seed: int
    leaves: tuple[Leaf, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[int, ...]
    types: Mapping[int, tuple[tuple[Extent, ...], str]]
    envs: tuple[Env, ...] = ({},)

    @property
    def parameters(self) -> list[Leaf]:
        """List the leaves that are the function's parameters, in order."""
        return [leaf for leaf in self.leaves if not leaf.constant]

    @property
    def operators(self) -> list[str]:
        """List the operators of the nodes."""
        return [node.operator for node in self.nodes]

    @property
    def is_symbolic(self) -> bool:
        """Tell whether any value has a symbolic dimension."""
        return any(isinstance(dim, Dim) for shape, _ in self.types.values() for dim in shape)

    @property
    def has_half(self) -> bool:
        """Tell whether any value is of a half type."""
        return any(dtype in HALVES for _, dtype in self.types.values())

    @property
    def is_empty_somewhere(self) -> bool:
        """Tell whether a value has no elements at one of the instantiations."""
        return any(
            0 in resolve(shape, env) for shape, _ in self.types.values() for env in self.envs
        )

    @property
    def has_special(self) -> bool:
        """Tell whether a leaf holds NaN or infinities."""
        return any(
            not np.isfinite(finite).all()
            for leaf in self.leaves
            for finite in leaf.data
            if leaf.dtype in FLOATS
        )

    def has_dtype(self, *dtypes: str) -> bool:
        """Tell whether any value is of one of these types."""
        return any(dtype in dtypes for _, dtype in self.types.values())

    def pruned(self) -> Graph:
        """Drop what no output needs."""
        needed = set(self.outputs)
        nodes = []
        for node in reversed(self.nodes):
            if needed & set(node.outputs):
                needed |= set(node.inputs)
                nodes.append(node)
        leaves = tuple(leaf for leaf in self.leaves if leaf.value in needed)
        kept = {leaf.value for leaf in leaves} | {v for node in nodes for v in node.outputs}
        types = {value: ty for value, ty in self.types.items() if value in kept}
        return replace(self, leaves=leaves, nodes=tuple(reversed(nodes)), types=types)

    def consumers(self) -> dict[int, int]:
        """Count who reads each value: nodes, and the caller if it is returned."""
        counts: dict[int, int] = {}
        for node in self.nodes:
            for value in set(node.inputs):
                counts[value] = counts.get(value, 0) + 1
        for value in self.outputs:
            counts[value] = counts.get(value, 0) + 1
        return counts

    def __str__(self) -> str:
        lines = [f"# seed {self.seed}" + (f", at {list(self.envs)}" if self.envs[0] else "")]
        for leaf in self.leaves:
            kind = "constant" if leaf.constant else "parameter"
            small = leaf.constant and leaf.data[0].size == 1
            text = f" = {leaf.data[0].item()}" if small else ""
            lines.append(f"v{leaf.value}: {_type_text(leaf.shape, leaf.dtype)} {kind}{text}")
        for node in self.nodes:
            results = ", ".join(f"v{v}: {_type_text(*self.types[v])}" for v in node.outputs)
            arguments = [f"v{v}" for v in node.inputs]
            arguments += [f"{key}={value!r}" for key, value in node.attrs.items()]
            lines.append(f"{results} = {node.operator}({', '.join(arguments)})")
        return "\n".join([*lines, "return " + ", ".join(f"v{v}" for v in self.outputs)])


def _type_text(shape: Sequence[Extent], dtype: str) -> str:
    return f"{dtype}[{', '.join(map(str, shape))}]"


def to_module(graph: Graph) -> tvm.IRModule:
    """Build the Relax module; its function ``main`` returns a tensor or a tuple of them."""
    symbols = {name: tirx.Var(name, "int64") for name in graph.envs[0]}
    values: dict[int, Any] = {}
    for leaf in graph.leaves:
        if leaf.constant:
            values[leaf.value] = relax.const(leaf.data[0], leaf.dtype)
        else:
            ty = relax.TensorType(resolve(leaf.shape, symbols), leaf.dtype)
            values[leaf.value] = relax.Var(f"v{leaf.value}", ty)
    builder = relax.BlockBuilder()
    with builder.function("main", [values[leaf.value] for leaf in graph.parameters]):
        with builder.dataflow():
            for node in graph.nodes:
                attrs = {key: resolve(value, symbols) for key, value in node.attrs.items()}
                build = OPERATORS[node.operator].build
                result = builder.emit(build(*(values[v] for v in node.inputs), **attrs))
                if isinstance(result.ty, relax.TupleType):
                    for index, value in enumerate(node.outputs):
                        values[value] = builder.emit(relax.TupleGetItem(result, index))
                else:
                    values[node.outputs[0]] = result
            outputs = [builder.emit_output(values[v]) for v in graph.outputs]
        builder.emit_func_output(outputs[0] if len(outputs) == 1 else relax.Tuple(outputs))
    return builder.get()
