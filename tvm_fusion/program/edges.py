"""Edges between the stages of a program: the loads of internal buffers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import ir

from .stage import Stage


@dataclass(frozen=True, eq=False)
class Edge:
    """One load: ``reader`` reads ``producer`` at ``at``, in the order of the producer's axes."""

    producer: int
    reader: int
    at: tuple[ir.Expr, ...]


def edges_of(stages: Sequence[Stage]) -> list[Edge]:
    """List the loads of internal buffers, each reader and position once."""
    producer = {t: (k, d) for k, s in enumerate(stages) for d, t in enumerate(s.targets)}
    edges: list[Edge] = []
    for k, stage in enumerate(stages):
        for found in stage.loads:
            if found.source not in producer:
                continue
            source, position = producer[found.source]
            write = stages[source].indices[position]
            dims = {v: d for d, v in enumerate(write) if isinstance(v, ir.Var)}
            at = tuple(found.indices[dims[a.var]] for a in stages[source].axes)
            if not any(
                e.producer == source
                and e.reader == k
                and all(a.same_as(b) for a, b in zip(e.at, at, strict=True))
                for e in edges
            ):
                edges.append(Edge(source, k, at))
    return edges
