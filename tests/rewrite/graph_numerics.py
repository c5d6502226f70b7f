"""Whether the nodes of an e-graph's classes are equal, in numbers."""

from collections.abc import Mapping, Sequence

import numpy as np

from tests.rewrite.term_numerics import LIMIT, SLACK, apply, deviations, exactly, finite, run, wide
from tvm_fusion.rewrite.egraph.analysis import Node
from tvm_fusion.rewrite.egraph.graph import EGraph
from tvm_fusion.rewrite.egraph.head import Head
from tvm_fusion.rewrite.egraph.terms import Term, subterms

ROUGH = 1e-3  # of expressions that laws made of nothing the region has: nobody knows their error


def unequal_nodes(
    graph: EGraph, before: Sequence[Term], given: Mapping[Head, np.ndarray], seed: int = 0
) -> list[str]:
    """Find nodes that do not compute what their class does; in float64.

    Classes that the region has are compared with it, where it is finite. Of others, nodes are
    compared with each other, where they are finite.
    """
    originals = list(subterms(before))
    exact = run(before, graph.heads, {h: wide(a) for h, a in given.items()}, exactly)
    apart = deviations(before, graph.heads, given, seed)
    terms: dict[int, list[Term]] = {}
    for term, number in zip(originals, graph.add_terms(originals), strict=True):
        terms.setdefault(number, []).append(term)
    values: dict[int, np.ndarray] = {}
    valid: dict[int, np.ndarray] = {}
    for number, same in terms.items():
        fine = [finite(term, exact) for term in same]
        values[number] = np.select(fine, [exact[t] for t in same], exact[same[0]])
        valid[number] = np.logical_or.reduce(fine)
    _complete(graph, values, given)
    wrong = []
    for number, known in graph.classes.items():
        if not any(n.head.call is not None for n in known.nodes):
            continue
        reference = values[number]
        if number in terms:
            where = valid[number]
            bound = sum(SLACK * apart[t] for t in terms[number])
        else:
            where, bound = np.isfinite(reference), 0.0
            bound = ROUGH * np.abs(reference[where]).max(initial=0.0) + 1e-30
        for node, law in known.nodes.items():
            if node.head.call is None:
                continue
            result = _result(graph, number, node, values)
            here = where if number in terms else where & np.isfinite(result)
            if not _close(result, reference, here, bound):
                wrong.append(f"{law or 'what is there'}: {_text(graph, number, node)}")
    return wrong


def _complete(
    graph: EGraph, values: dict[int, np.ndarray], given: Mapping[Head, np.ndarray]
) -> None:
    """Set every class's value: the first node's that is finite."""
    while True:
        before = len(values)
        for number, known in graph.classes.items():
            if number in values:
                continue
            found = [
                _result(graph, number, node, values, given)
                for node in known.nodes
                if all(graph.find(o) in values for o in node.operands)
            ]
            if found:
                fine = [np.isfinite(f) & (np.abs(f) < LIMIT) for f in found]
                values[number] = np.select(fine, found, found[0])
        if len(values) == before:
            return


def _result(
    graph: EGraph,
    number: int,
    node: Node,
    values: Mapping[int, np.ndarray],
    given: Mapping[Head, np.ndarray] | None = None,
) -> np.ndarray:
    if node.head.call is None:
        array = (given or {}).get(node.head)
        return wide(graph.heads.values[node.head].value.numpy() if array is None else array)
    operands = [values[graph.find(o)] for o in node.operands]
    return apply(node.head, operands, str(graph[number].type.dtype))


def _close(new: np.ndarray, old: np.ndarray, where: np.ndarray, bound: np.ndarray | float) -> bool:
    if old.dtype.kind != "f":
        return bool(np.array_equal(new[where], old[where]))
    with np.errstate(all="ignore"):
        return bool((~where | (np.abs(new - old) <= bound)).all())


def _text(graph: EGraph, number: int, node: Node) -> str:
    originals = ", ".join(str(n.head.name) for n, law in graph[number].nodes.items() if not law)
    return f"{node.head.name}{node.operands} in class {number} with {originals or 'nothing'}"
