"""Convert scan, associative_scan and map: loops over the slices of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import fx
from tvm import relax

from ..control_flow.loops import Loop, Slices, take_slice
from ..control_flow.recursion import convert_loop
from ..registry import Unsupported
from ..tensor_types import static
from .graph_scope import scope_of, size_of

op = relax.op


def convert_scan(importer: Any, node: fx.Node) -> list[Any]:
    """Convert scan: states, and one slice of its results a trip."""
    graph = importer._retrieve_args(node.args[0])
    states = [importer._retrieve_args(state) for state in node.args[1]]
    extra = node.args[3] if len(node.args) > 3 else ()
    return _over_slices(importer, node, graph, states, node.args[2], extra)


def convert_map(importer: Any, node: fx.Node) -> list[Any]:
    """Convert map: a graph for every slice."""
    graph = importer._retrieve_args(node.args[0])
    return _over_slices(importer, node, graph, [], node.args[1], node.args[2])


def _over_slices(
    importer: Any,
    node: fx.Node,
    graph: fx.GraphModule,
    states: list[Any],
    scanned: Sequence[Any],
    extra: Sequence[Any],
) -> list[Any]:
    """Convert a loop over the slices of tensors along their first axis."""
    scope, names = scope_of(importer, node, [*scanned, *extra])
    trips = _static_or_symbol(scope.values[names[0]].ty.shape[0])
    kept = len(states)

    def step(trip: Any, go: Any, before: list[Any], values: Any) -> tuple[Any, Any, Any]:
        outside = scope.read(names, values)
        parts = [take_slice(scope.bb, value, 0, trip) for value in outside[: len(scanned)]]
        results = importer.translate(graph, [*before, *parts, *outside[len(scanned) :]])
        return go, results[:kept], [scope.as_tensor(value) for value in results[kept:]]

    n_results = len(_output(graph)) - kept
    loop = Loop(
        node.name,
        trips,
        relax.const(True, "bool"),
        states,
        [f"{node.name}_{i}" for i in range(kept)],
        step,
        names,
        [Slices(f"{node.name}_slices_{i}") for i in range(n_results)],
        size_of(graph) + len(scanned),
    )
    return convert_loop(scope, loop)


def convert_associative_scan(importer: Any, node: fx.Node) -> list[Any]:
    """Convert associative_scan: the states of a scan, one after the other."""
    graph, scanned = importer._retrieve_args(node.args[0]), list(node.args[1])
    extra = list(node.args[2]) if len(node.args) > 2 else []
    scope, names = scope_of(importer, node, [*scanned, *extra])
    values = list(scope.values.values())[: len(scanned)]
    extent = _static_or_symbol(values[0].ty.shape[0])
    if extent == 0:
        raise Unsupported("of no elements", "leave it out")
    trips = extent - 1

    def step(trip: Any, go: Any, before: list[Any], around: Any) -> tuple[Any, Any, Any]:
        outside = scope.read(names, around)
        parts = [take_slice(scope.bb, value, 0, trip + 1) for value in outside[: len(scanned)]]
        after = importer.translate(graph, [*before, *parts, *outside[len(scanned) :]])
        return go, after, list(after)

    loop = Loop(
        node.name,
        trips,
        relax.const(True, "bool"),
        [take_slice(scope.bb, value, 0, 0) for value in values],
        [f"{node.name}_{i}" for i in range(len(scanned))],
        step,
        names,
        [Slices(f"{node.name}_slices_{i}") for i in range(len(scanned))],
        size_of(graph) + len(scanned),
    )
    later = [scope.bb.emit(value) for value in convert_loop(scope, loop)[len(scanned) :]]
    first = [op.strided_slice(v, [0], [0], [1], assume_inbound=True) for v in values]
    return [
        scope.bb.emit(op.concat([scope.bb.emit(one), rest], axis=0))
        for one, rest in zip(first, later, strict=True)
    ]


def _static_or_symbol(extent: Any) -> Any:
    """Return an extent as a number where it is one."""
    known = static(extent)
    return extent if known is None else known


def _output(graph: fx.GraphModule) -> Sequence[Any]:
    (node,) = graph.graph.find_nodes(op="output")
    return tuple(node.args[0])
