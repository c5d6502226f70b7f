"""Align stages to common leading row axes; no stage reads another row of a stage.

The axes of each reduction are spread to the other stages (:mod:`.spread_rows`); the reduction that
gives the most rows is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tvm_ffi
from tvm import ir, tirx
from tvm.tirx import Buffer

from .edges import edges_of
from .relayout import relaid
from .spread_rows import RowSpread
from .stage import Stage


@dataclass(frozen=True, eq=False)
class Aligned:
    """Stages whose first ``rows`` axes are the same."""

    stages: tuple[Stage, ...]
    rows: int


def score(aligned: Aligned) -> tuple[int, int]:
    """How many rows there are: symbolic extents count more than any number."""
    return _score([a.extent for a in aligned.stages[0].axes[: aligned.rows]])


def _score(extents: Sequence[ir.Expr]) -> tuple[int, int]:
    known = [int(e.value) for e in extents if isinstance(e, tirx.IntImm)]
    total = 1
    for extent in known:
        total *= extent
    return len(extents) - len(known), total


def align(stages: Sequence[Stage], inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> Aligned:
    """Bring stages to common row axes, as many as can be proved.

    Parameters
    ----------
    stages : sequence of Stage
        In order; each internal target written at its axes in order.
    inputs : sequence of Buffer
        What stages read besides; tells which rows of unrelated stages belong together.
    outputs : sequence of Buffer
        Targets that keep their layout.

    Returns
    -------
    Aligned
        The same computation. Without reductions and internal buffers, or where nothing can be
        aligned, ``rows`` is 0 and the stages are those given.
    """
    edges = edges_of(stages)
    anchors = [k for k, s in enumerate(stages) if not s.is_map]
    anchors = anchors or list(dict.fromkeys(e.producer for e in edges))
    spread = RowSpread(stages, edges, inputs)
    highest = min((_score([a.extent for a in s.axes]) for s in stages), default=(0, 1))
    best, reaxed, rows = (0, 1), None, 0
    tried: list[list[ir.Expr]] = []
    for anchor in anchors:
        extents = [a.extent for a in stages[anchor].axes]
        if best >= highest or any(tvm_ffi.structural_equal(extents, t) for t in tried):
            continue
        tried.append(extents)
        found, kept = spread.rows_of(anchor)
        if found is not None and _score(kept) > best:
            best, reaxed, rows = _score(kept), found, len(kept)
    if reaxed is None:
        return Aligned(tuple(stages), 0)
    return Aligned(relaid(stages, reaxed, rows, outputs), rows)
