"""Decide which stages are materialized, and which are inlined into their consumers."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import ir, tirx
from tvm.tirx import Buffer

from ..core.expressions import product
from .bind import InlineCandidate
from .domain import Domain
from .stage import Axis
from .to_tir import MOST_NODES


class Wiring:
    """Producers and consumers among the stages of a group.

    Attributes
    ----------
    parts : tuple of InlineCandidate
        In topological order, without those that nothing needs.
    outputs : frozenset of Buffer
        What leaves the group.
    """

    def __init__(self, parts: Sequence[InlineCandidate], outputs: Sequence[Buffer]) -> None:
        self.outputs = frozenset(outputs)
        needed = set(outputs)
        live: list[InlineCandidate] = []
        for part in reversed(parts):
            if needed.intersection(part.stage.targets):
                needed.update(part.stage.reads)
                live.append(part)
        self.parts = tuple(reversed(live))
        self.producer = {t: k for k, p in enumerate(self.parts) for t in p.stage.targets}
        self.readers: list[set[int]] = [set() for _ in self.parts]
        for k, part in enumerate(self.parts):
            for buffer in part.stage.reads:
                if buffer in self.producer:
                    self.readers[self.producer[buffer]].add(k)

    def map_behind(self, buffer: Buffer) -> int | None:
        """Tell which map writes a buffer."""
        k = self.producer.get(buffer)
        return k if k is not None and self.parts[k].stage.is_map else None

    def leaves(self, k: int) -> bool:
        """Whether a stage writes an output."""
        return not self.outputs.isdisjoint(self.parts[k].stage.targets)


def too_large(wiring: Wiring) -> frozenset[int]:
    """Find maps that must be stages, or their readers' expressions would grow without bounds."""
    read = [
        [p for x in part.stage.loads if (p := wiring.map_behind(x.source)) is not None]
        for part in wiring.parts
    ]
    forced: set[int] = set()
    nodes: list[int] = []

    def inlined_size(k: int) -> int:
        return wiring.parts[k].size + sum(nodes[p] for p in read[k] if p not in forced)

    for k in range(len(wiring.parts)):
        while inlined_size(k) > MOST_NODES:
            times = _occurrences(k, read, forced)
            if not times:
                break
            # What repeats most: forcing what holds it would leave the repetition.
            forced.add(max(times, key=lambda p: (times[p] * nodes[p], p)))
            nodes.clear()
            for earlier in range(k):
                nodes.append(inlined_size(earlier))
        nodes.append(inlined_size(k))
    return frozenset(forced)


def _occurrences(k: int, read: Sequence[Sequence[int]], forced: set[int]) -> dict[int, int]:
    """Count how often each inlined map occurs in the expression of a stage."""
    times: dict[int, int] = {}
    pending = {k: 1}
    while pending:
        reader = max(pending)  # all that could read it in turn are done
        count = pending.pop(reader)
        for p in read[reader]:
            if p not in forced:
                pending[p] = pending.get(p, 0) + count
                times[p] = times.get(p, 0) + count
    return times


def worth_keeping(wiring: Wiring, forced: frozenset[int]) -> frozenset[int]:
    """Find maps whose values should be computed once per element: several stages read them.

    What only moves elements never is. Of the rest it is what costs more than a load, and is read
    by a reduction among others, by two stages over as many points as it has elements itself, or
    more than once per element by one reduction (the left side of a matrix product).
    """
    kept: set[int] = set()
    # Stages that will remain and compute or read each part, through what is inlined.
    users: list[set[int]] = [set() for _ in wiring.parts]
    for k in range(len(wiring.parts) - 1, -1, -1):
        part = wiring.parts[k]
        for reader in wiring.readers[k]:
            remains = reader in kept or reader in forced or not wiring.parts[reader].stage.is_map
            users[k] |= {reader} if remains else users[reader]
        if wiring.leaves(k):
            users[k].add(k)
        if not part.stage.is_map or k in forced or part.is_movement or not part.is_costly:
            continue
        others = [wiring.parts[u].stage for u in users[k] if u != k]
        reductions = [stage for stage in others if not stage.is_map]
        if len(users[k]) == 1:
            keep = any(not _same_points(s.axes, s.reduce, part) for s in reductions)
        else:
            alike = [s for s in others if _same_points(s.axes, s.reduce, part)]
            keep = bool(reductions) or len(alike) + wiring.leaves(k) > 1
        if keep:
            kept.add(k)
    return frozenset(kept)


def _same_points(axes: Sequence[Axis], reduce: Sequence[Axis], part: InlineCandidate) -> bool:
    """Whether a stage has as many points as a part has elements."""
    points = product(a.extent for a in (*axes, *reduce))
    elements = product(a.extent for a in part.stage.axes)
    if isinstance(points, tirx.IntImm) and isinstance(elements, tirx.IntImm):
        return int(points.value) == int(elements.value)
    return Domain(()).equal(points, elements)


def is_position(index: ir.Expr) -> bool:
    """Whether an index needs no simplification after it is put in place of a variable."""
    return isinstance(index, ir.Var | tirx.IntImm)
