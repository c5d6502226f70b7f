"""Patterns in an e-graph: find what their names stand for, and add what they say."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

from tvm import relax

from ...ecg.properties import properties_of
from .eclass_analysis import Node
from .egraph import EGraph
from .head import Head
from .pattern import Apply, Number, Pattern, Tensor

#: What the names of a pattern stand for: classes, and heads of operators with attributes.
Bindings: TypeAlias = Mapping[str, "int | Head"]


def matches(pattern: Pattern, number: int, graph: EGraph, bound: Bindings) -> Iterator[Bindings]:
    """Find what the names of a pattern stand for in a class.

    Parameters
    ----------
    bound : Mapping
        What names stand for already.

    Yields
    ------
    Mapping
        With all names of the pattern.
    """
    if isinstance(pattern, Tensor):
        known = bound.get(pattern.name)
        if known is None:
            if not pattern.is_constant or graph[number].is_constant:
                yield {**bound, pattern.name: graph.find(number)}
        elif known == graph.find(number):
            yield bound
    elif isinstance(pattern, Number):
        if graph.uniform(number) == pattern.value:
            yield bound
    elif isinstance(pattern, Apply):
        names = pattern.names
        for node in tuple(graph[number].nodes):
            if node.head.name in names:
                yield from _node_matches(pattern, node, graph, bound)


def _node_matches(pattern: Apply, node: Node, graph: EGraph, bound: Bindings) -> Iterator[Bindings]:
    if len(pattern.operands) != len(node.operands):
        return
    if pattern.attrs:
        known = bound.get(pattern.attrs)
        if known is not None and known is not node.head:
            return
        bound = {**bound, pattern.attrs: node.head}
    orders = [node.operands]
    if properties_of(node.head.name).commutative and len(node.operands) == 2:
        first, second = node.operands
        if first != second and pattern.operands[0] != pattern.operands[1]:
            orders.append((second, first))
    for order in orders:
        yield from _all_match(pattern.operands, order, graph, bound)


def _all_match(
    parts: Sequence[Pattern], operands: Sequence[int], graph: EGraph, bound: Bindings
) -> Iterator[Bindings]:
    """Match operands one after the other; lazily, as many matches as are asked for."""
    if not parts:
        yield bound
        return
    for more in matches(parts[0], operands[0], graph, bound):
        yield from _all_match(parts[1:], operands[1:], graph, more)


def write(pattern: Pattern, graph: EGraph, bound: Bindings, dtype: str, law: str) -> int | None:
    """Add what a pattern stands for.

    Parameters
    ----------
    pattern : Pattern
        Over names that are bound.

    Returns
    -------
    int or None
        The class; None where an operator does not take its operands.
    """
    if isinstance(pattern, Tensor):
        known = bound[pattern.name]
        return known if isinstance(known, int) else None
    if isinstance(pattern, Number):
        return graph.constant(pattern.value, dtype)
    if not isinstance(pattern, Apply):
        raise TypeError(f"{pattern!r} is not a pattern")
    operands = []
    for part in pattern.operands:
        operand = write(part, graph, bound, dtype, law)
        if operand is None:
            return None
        operands.append(operand)
    head = bound.get(pattern.attrs)
    if isinstance(head, Head) and head.name in pattern.names:
        return graph.add(head, operands, law)
    return graph.call(_operator(pattern.name), *operands, law=law)


def _operator(name: str) -> Callable[..., relax.Call]:
    """Find the function of ``relax.op`` that writes an operator."""
    found = relax.op
    for part in name.split(".")[1:]:
        found = getattr(found, part)
    return found
