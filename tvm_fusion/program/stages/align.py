"""Align stages to common leading row axes; no stage reads another row of a stage.

The axes of each reduction are spread to the other stages; the reduction that
gives the most rows is taken.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import tvm_ffi
from tvm import ir, sym, tirx
from tvm.sym.iter_affine_map import IterMapLevel
from tvm.tirx import Buffer

from ...core.tir.expressions import has_load, substitute, variables
from ..domain import Domain
from ..stage import Stage
from .reindex import Reindexed, reindex
from .relayout import relaid

# Edges between the stages of a program: the loads of internal buffers.


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
    stages
        In order; each internal target written at its axes in order.
    inputs
        What stages read besides; tells which rows of unrelated stages belong together.
    outputs
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


# Propagate the row axes of one stage to all others along their loads.
#
# Rows are functions of a stage's points. They start as the axes of one reduction and spread along
# the loads of internal buffers: a reader's row is the row of what it reads. A row function that no
# two paths agree on, or that a reduced axis takes part in, is given up.
Rows = list[dict[int, ir.Expr]]  # per row axis: the row of each stage's points
Positions = dict[Buffer, tuple[tuple[int, ...], ...]]  # per input: of each load of it


@dataclass(frozen=True, eq=False)
class _Links:
    """Loads of shared inputs that relate stages, while rows propagate; known rows are final."""

    # Per stage with a row, where it reads inputs at that row.
    positions: dict[int, Positions] = field(default_factory=dict)
    # Per stage without a row, with how many of those that have one, in the order in which they got
    # it, it shares no part of an input.
    tried: dict[int, int] = field(default_factory=dict)


class RowSpread:
    """Propagates the row axes of one stage to all others."""

    def __init__(
        self, stages: Sequence[Stage], edges: Sequence[Edge], inputs: Sequence[Buffer]
    ) -> None:
        self.stages = stages
        self.edges = edges
        self.inputs = set(inputs)
        self._loads: dict[int, list[ir.TensorLoad]] = {}
        self._known_fits: dict[tuple[int, tvm_ffi.StructuralKey, tvm_ffi.StructuralKey], bool] = {}
        self.spatial = [Domain(s.axes) for s in stages]
        self.whole = [Domain((*s.axes, *s.reduce)) for s in stages]

    def rows_of(self, anchor: int) -> tuple[list[Reindexed] | None, list[ir.Expr]]:
        """Re-axe all stages by as many axes of ``anchor`` as possible; also tell their extents."""
        extents, rows = [], []
        for position, axis in enumerate(self.stages[anchor].axes):
            found = self._row(anchor, position)
            if found is not None:
                extents.append(axis.extent)
                rows.append(found)
        while rows:
            reaxed: list[Reindexed] = []
            for k, stage in enumerate(self.stages):
                new = reindex(stage.axes, [row[k] for row in rows], extents)
                if new is None:
                    break
                reaxed.append(new)
            else:
                return reaxed, extents
            wrong = self._first_wrong(len(reaxed), rows, extents)
            del rows[wrong], extents[wrong]
        return None, []

    def _first_wrong(self, k: int, rows: Rows, extents: Sequence[ir.Expr]) -> int:
        """Tell which row cannot be an axis of a stage; the last if only all together cannot."""
        for position, row in enumerate(rows):
            if reindex(self.stages[k].axes, [row[k]], [extents[position]]) is None:
                return position
        return len(rows) - 1

    def _row(self, anchor: int, position: int) -> dict[int, ir.Expr] | None:
        """Spread one row function to all stages; None if a stage contradicts it."""
        axis = self.stages[anchor].axes[position]
        row: dict[int, ir.Expr] = {anchor: axis.var}
        links = _Links()
        while True:
            if not self._spread(row):
                return None
            missing = [k for k in range(len(self.stages)) if k not in row]
            if not missing:
                break
            if not self._link(row, missing, position, axis.extent, links):
                return None
        for edge in self.edges:
            there = self._forward(edge, row[edge.producer])
            if there is None or not self.whole[edge.reader].equal(there, row[edge.reader]):
                return None
        return row

    def _spread(self, row: dict[int, ir.Expr]) -> bool:
        changed = True
        while changed:
            changed = False
            for edge in self.edges:
                if edge.producer in row and edge.reader not in row:
                    there = self._forward(edge, row[edge.producer])
                    if there is None:
                        return False
                    row[edge.reader], changed = there, True
                elif edge.reader in row and edge.producer not in row:
                    back = self._backward(edge, row[edge.reader])
                    if back is not None:
                        row[edge.producer], changed = back, True
        return True

    def _forward(self, edge: Edge, row: ir.Expr) -> ir.Expr | None:
        """Tell a reader's row from that of what it reads."""
        axes = self.stages[edge.producer].axes
        there = substitute(row, {a.var: i for a, i in zip(axes, edge.at, strict=True)})
        if not isinstance(there, ir.Var) and not isinstance(row, ir.Var):
            there = self.whole[edge.reader].simplify(there)
        reduced = {a.var for a in self.stages[edge.reader].reduce}
        return None if has_load(there) or variables(there) & reduced else there

    def _backward(self, edge: Edge, row: ir.Expr) -> ir.Expr | None:
        """Tell a producer's row from that of its reader."""
        axes = self.stages[edge.producer].axes
        whole = self.whole[edge.reader]
        for axis, index in zip(axes, edge.at, strict=True):
            if not has_load(index) and whole.equal(index, row):
                return axis.var
        if any(has_load(i) for i in edge.at):
            return None
        used = variables(row)
        solved = {i: a.var for a, i in zip(axes, edge.at, strict=True) if isinstance(i, ir.Var)}
        if not used & set(whole.ranges) <= set(solved):
            sums = whole.iter_map(edge.at, IterMapLevel.Bijective)
            if sums is None or not all(map(_is_dense, sums)):
                return None
            inverse = sym.inverse_affine_iter_map(list(sums), [a.var for a in axes])
            solved = dict(inverse.items())
            if not used & set(whole.ranges) <= set(solved):
                return None
        back = self.spatial[edge.producer].simplify(substitute(row, solved))
        if variables(back) & set(whole.ranges):
            return None
        forth = self._forward(edge, back)
        return back if forth is not None and whole.equal(forth, row) else None

    def _link(
        self,
        row: dict[int, ir.Expr],
        missing: list[int],
        position: int,
        extent: ir.Expr,
        links: _Links,
    ) -> bool:
        """Assign rows to one stage that no load relates to others: by an input or by position.

        Any choice is right, as nothing depends on it; reading the same part of an input is best.
        """
        for k in missing:
            for known in list(row)[links.tried.get(k, 0) :]:
                if known not in links.positions:
                    links.positions[known] = self._matches(known, row[known])
                for mine in self._input_loads(k):
                    for positions in links.positions[known].get(mine.source, ()):
                        found = self._through_input(k, mine, positions)
                        if found is not None and self._fits(k, found, extent):
                            row[k] = found
                            return True
                links.tried[k] = links.tried.get(k, 0) + 1
        # Reductions first: the rows of maps can follow any of their axes.
        for k in sorted(missing, key=lambda k: self.stages[k].is_map):
            axes = self.stages[k].axes
            if position < len(axes) and self.spatial[k].equal(axes[position].extent, extent):
                row[k] = axes[position].var
                return True
        return False

    def _fits(self, k: int, row: ir.Expr, extent: ir.Expr) -> bool:
        key = k, tvm_ffi.StructuralKey(row), tvm_ffi.StructuralKey(extent)
        if key not in self._known_fits:
            self._known_fits[key] = reindex(self.stages[k].axes, [row], [extent]) is not None
        return self._known_fits[key]

    def _input_loads(self, k: int) -> list[ir.TensorLoad]:
        """List what a stage reads of inputs; of equal loads, which inlining repeats, the first."""
        if k not in self._loads:
            read = [x for x in self.stages[k].loads if x.source in self.inputs]
            self._loads[k] = list({tvm_ffi.StructuralKey(x): x for x in reversed(read)}.values())
            self._loads[k].reverse()
        return self._loads[k]

    def _matches(self, k: int, row: ir.Expr) -> Positions:
        """List the positions at which each load of an input is at a stage's row, all alike once."""
        whole = self.whole[k]
        found: dict[Buffer, dict[tuple[int, ...], None]] = {}
        known: dict[tvm_ffi.StructuralKey, bool] = {}

        def is_row(index: ir.Expr) -> bool:
            key = tvm_ffi.StructuralKey(index)
            if key not in known:
                known[key] = not has_load(index) and whole.equal(index, row)
            return known[key]

        for read in self._input_loads(k):
            positions = tuple(p for p, index in enumerate(read.indices) if is_row(index))
            if positions:
                found.setdefault(read.source, {})[positions] = None
        return {source: tuple(alike) for source, alike in found.items()}

    def _through_input(
        self, k: int, mine: ir.TensorLoad, positions: Sequence[int]
    ) -> ir.Expr | None:
        reduced = {a.var for a in self.stages[k].reduce}
        for position in positions:
            index = mine.indices[position]
            if not has_load(index) and not variables(index) & reduced:
                return index
        return None


def _is_dense(total: sym.iter_affine_map.IterSumExpr) -> bool:
    """Whether a sum leaves out no numbers, which TVM demands of what it inverts."""
    scales = [split.scale for split in total.args]
    return not scales or any(isinstance(s, tirx.IntImm) and abs(int(s)) == 1 for s in scales)
