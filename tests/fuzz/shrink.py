"""A failing graph made small: fewer outputs, later starts, no node that is not needed."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from .check import Failure
from .graph import Graph, Leaf
from .reference import evaluate

TRIALS = 120  # compilations at most


def shrink(graph: Graph, check: Callable[[Graph], Failure | None], kind: str) -> Graph:
    """Return a smaller graph on which ``check`` still fails in this kind."""
    left = [TRIALS]

    def fails(candidate: Graph) -> bool:
        if left[0] == 0 or not candidate.nodes:
            return False
        left[0] -= 1
        found = check(candidate)
        return found is not None and found.kind == kind

    graph = _fewer_outputs(graph, fails)
    changed = True
    while changed and left[0]:
        before = len(graph.nodes)
        graph = _earlier_output(graph, fails)
        graph = _cut(graph, fails)
        changed = len(graph.nodes) < before
    return graph


def _fewer_outputs(graph: Graph, fails: Callable[[Graph], bool]) -> Graph:
    for value in graph.outputs:
        alone = replace(graph, outputs=(value,)).pruned()
        if len(graph.outputs) > 1 and fails(alone):
            return alone
    for value in graph.outputs:
        rest = tuple(v for v in graph.outputs if v != value)
        if rest and fails(candidate := replace(graph, outputs=rest).pruned()):
            graph = candidate
    return graph


def _earlier_output(graph: Graph, fails: Callable[[Graph], bool]) -> Graph:
    """Return a value from inside in place of the outputs, the earliest that still fails."""
    for node in graph.nodes[:-1]:
        for value in node.outputs:
            candidate = replace(graph, outputs=(value,)).pruned()
            if len(candidate.nodes) < len(graph.nodes) and fails(candidate):
                return candidate
    return graph


def _cut(graph: Graph, fails: Callable[[Graph], bool]) -> Graph:
    """Turn the results of nodes into parameters, the last nodes first: what they need goes too."""
    for node in reversed(graph.nodes):
        if node in graph.nodes and not set(node.outputs) & set(graph.outputs):
            candidate = _as_parameters(graph, node.outputs)
            if fails(candidate):
                graph = candidate
    return graph


def _as_parameters(graph: Graph, values: tuple[int, ...]) -> Graph:
    leaves = list(graph.leaves)
    each = [evaluate(graph, index) for index in range(len(graph.envs))]
    for value in values:
        shape, dtype = graph.types[value]
        with np.errstate(all="ignore"):
            data = tuple(np.asarray(e[value].exact).astype(dtype) for e in each)
        leaves.append(Leaf(value, shape, dtype, data))
    nodes = tuple(node for node in graph.nodes if node.outputs != values)
    return replace(graph, leaves=tuple(leaves), nodes=nodes).pruned()
