"""Graph traversals from which templates make their proposals."""

from collections.abc import Callable, Container, Iterable

from ...core.once import once
from ...ecg.graph import Graph, Operator
from ...ecg.mapping_types.table import MappingType
from ...program.group import Group
from ...program.stage import Stage, Unstructured
from ...program.stages.bind import parts_of

MOVES = (MappingType.REORGANIZE, MappingType.SHUFFLE)
LIGHT = (MappingType.ONE_TO_ONE, MappingType.ONE_TO_MANY, *MOVES)


_REDUCTIONS = "reductions"


def reductions(op: Operator) -> list[Stage]:
    """List the reductions of a Many-to-Many operator."""
    if op.type is not MappingType.MANY_TO_MANY:
        return []
    operands, found = op.known.get(_REDUCTIONS, (None, []))
    if operands is not op.operands:
        found = once((_REDUCTIONS, Group([op]).key), lambda: _reductions(op))
        op.known[_REDUCTIONS] = op.operands, found
    return found


def _reductions(op: Operator) -> list[Stage]:
    try:
        return [part.stage for part in parts_of(op) if not part.stage.is_map]
    except Unstructured:
        return []


def reached(
    start: Iterable[Operator],
    step: Callable[[Operator], Iterable[Operator]],
    among: Container[Operator],
) -> set[Operator]:
    """Find the operators among some that are reachable, those of the start included.

    Parameters
    ----------
    step
        Such as ``graph.successors``.
    among
        Operators that may be visited.
    """
    found = set(start)
    frontier = list(found)
    while frontier:
        for op in step(frontier.pop()):
            if op in among and op not in found:
                found.add(op)
                frontier.append(op)
    return found


def own_producers(
    graph: Graph,
    inside: Iterable[Operator],
    types: tuple[MappingType, ...],
    limit: int,
    accepts: Callable[[Operator], bool] = lambda op: True,
) -> dict[Operator, None]:
    """Find producers, transitively, whose results only these operators read.

    Parameters
    ----------
    limit
        Of the number of producers.
    accepts
        Whether a producer is included.
    """
    inside = dict.fromkeys(inside)
    found: dict[Operator, None] = {}
    changed = True
    while changed and len(found) < limit:
        changed = False
        for op in [p for o in (*inside, *found) for p in graph.predecessors(o)]:
            if op in inside or op in found or op.type not in types or leaves(op):
                continue
            if all(r in inside or r in found for r in graph.successors(op)) and accepts(op):
                found[op] = None
                changed = True
    return found


def leaves(op: Operator) -> bool:
    """Whether a result of an operator is an output of the graph."""
    return any(value.leaves for value in op.results)


def in_order(operators: Iterable[Operator]) -> tuple[Operator, ...]:
    """Sort operators as the graph has them: sets have another order in every run."""
    return tuple(sorted(operators, key=lambda op: op.index))
