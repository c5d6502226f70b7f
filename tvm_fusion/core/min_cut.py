"""Vertices of least weight that part the sources of a graph from its sinks.

each vertex is an edge of its weight, each edge of the graph one without a limit
push flow along shortest paths until none is left  (Edmonds and Karp, 1972)
the cut: vertices of which the end still reaches the sinks, and the beginning does not
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

V = TypeVar("V", bound=Hashable)
_END = 1


def min_vertex_cut(
    weights: Mapping[V, int],
    readers: Mapping[V, Sequence[V]],
    sources: Iterable[V],
    sinks: Iterable[V],
) -> set[V]:
    """Choose a cut of least weight; of several, the one closest to the sinks.

    Parameters
    ----------
    weights : mapping of vertex to int
        Of each vertex, sources and sinks too: positive.
    sources, sinks : iterable of vertex
        What is to be parted; a vertex that is both is part of every cut.

    Returns
    -------
    set of vertex
        Every path from a source to a sink has one of these.
    """
    capacity: dict[tuple, dict[tuple, float]] = {}

    def connect(a: tuple, b: tuple, much: float) -> None:
        capacity.setdefault(a, {})[b] = much
        capacity.setdefault(b, {}).setdefault(a, 0)

    start, stop = ("start",), ("stop",)
    capacity[start], capacity[stop] = {}, {}
    for vertex, weight in weights.items():
        connect((vertex, 0), (vertex, _END), weight)
        for reader in readers.get(vertex, ()):
            connect((vertex, _END), (reader, 0), float("inf"))
    for vertex in sources:
        connect(start, (vertex, 0), float("inf"))
    for vertex in sinks:
        connect((vertex, _END), stop, float("inf"))
    while path := _path(capacity, start, stop):
        much = min(capacity[a][b] for a, b in path)
        for a, b in path:
            capacity[a][b] -= much
            capacity[b][a] += much
    beyond = _reaching(capacity, stop)
    return {v for v in weights if (v, _END) in beyond and (v, 0) not in beyond}


def _path(
    capacity: Mapping[tuple, Mapping[tuple, float]], start: tuple, stop: tuple
) -> list[tuple[tuple, tuple]]:
    """Find the edges of a shortest path with capacity left; none where there is none."""
    came: dict[tuple, tuple] = {start: start}
    queue = deque([start])
    while queue and stop not in came:
        here = queue.popleft()
        for there, left in capacity[here].items():
            if left > 0 and there not in came:
                came[there] = here
                queue.append(there)
    path = []
    while stop in came and stop != start:
        path.append((came[stop], stop))
        stop = came[stop]
    return path


def _reaching(capacity: Mapping[tuple, Mapping[tuple, float]], stop: tuple) -> set[tuple]:
    """Find what reaches the end through edges with capacity left."""
    found, queue = {stop}, deque([stop])
    while queue:
        here = queue.popleft()
        for before in capacity[here]:
            if before not in found and capacity[before].get(here, 0) > 0:
                found.add(before)
                queue.append(before)
    return found
