"""Walks over a graph that templates find their proposals with."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable

from ..ecg.graph import Operator
from ..ecg.mapping import MappingType
from ..program.bind import parts_of
from ..program.stage import Stage, Unstructured

MOVES = (MappingType.REORGANIZE, MappingType.SHUFFLE)
LIGHT = (MappingType.ONE_TO_ONE, MappingType.ONE_TO_MANY, *MOVES)


def reductions(op: Operator) -> list[Stage]:
    """List the reductions of a Many-to-Many operator."""
    if op.type is not MappingType.MANY_TO_MANY:
        return []
    try:
        return [part.stage for part in parts_of(op) if not part.stage.is_map]
    except Unstructured:
        return []


def reached(
    start: Iterable[Operator],
    step: Callable[[Operator], Iterable[Operator]],
    among: Container[Operator],
) -> set[Operator]:
    """Find the operators among some that steps lead to, those of the start included.

    Parameters
    ----------
    start : iterable of Operator
        Where walks begin.
    step : callable
        Such as ``graph.successors``.
    among : container of Operator
        Where they may go.
    """
    found = set(start)
    frontier = list(found)
    while frontier:
        for op in step(frontier.pop()):
            if op in among and op not in found:
                found.add(op)
                frontier.append(op)
    return found


def in_order(operators: Iterable[Operator]) -> tuple[Operator, ...]:
    """Sort operators as the graph has them: sets have another order in every run."""
    return tuple(sorted(operators, key=lambda op: op.index))
