"""The vectors of a thread block's rows: which loads and stores there are, in which registers.

vector `step` of a thread is vector `step * threads + t` of the row, `width` elements:
    what only this row needs    registers of a group of vectors, or of the row where it is kept
    what rows share             registers of one vector, or of all where it is loaded early
    results                     registers of one vector
"""

from collections.abc import Sequence
from dataclasses import dataclass

import tvm_ffi
from tvm import ir, tirx

from ....core.tir.expressions import has_load
from ....core.tir.loops import index
from ....program.stage import Axis
from ...math.half_math import HALF_TYPES
from ..program.emit import Pairs, bind, replace, static_volume, unflatten
from ..program.row_program import RowStage
from .storage import items_per_thread
from .thread_block import ThreadBlock
from .vectorize import is_streamed, is_vector

LOADS_IN_FLIGHT = 8  # of 16 bytes that a thread issues before it uses the first


@dataclass(frozen=True)
class RowVectorLoad:
    """A vectorized load of an input."""

    stage: RowStage  # whose axes it mentions
    load: ir.TensorLoad
    registers: ir.Var  # its destination
    is_row: bool  # whether the registers hold a whole row, rather than some vectors
    # Whether it is issued before anything is computed: each row has elements of its own.
    is_streamed: bool
    # Whether it is issued before the first pass: all rows share the elements.
    is_early: bool = False
    ahead: ir.Var | None = None  # registers of the same elements of the block's next group of rows


class RowVectors:
    """Every ``threads``-th vector of a row, from the thread's own on.

    Parameters
    ----------
    block
        Whose threads run the loop.
    r, t
        The row of the block, and the thread of the row.
    """

    def __init__(self, block: ThreadBlock, stages: Sequence[RowStage], r: ir.Expr, t: ir.Expr):
        self.block, self.stages, self.r, self.t = block, stages, r, t
        vectors = block.vectorized(stages[0].loop_axes)
        self.width = vectors.width
        self.axes = [[stage.loop_axes[i] for i in vectors.axes] for stage in stages]
        self.vectors = vectors.count(static_volume(self.axes[0], 1))
        self.steps = items_per_thread(self.axes[0], block.config.threads, vectors) or 1
        loads = self._loads()
        streams = sum(is_streamed(load, stage.rows) for stage, load in loads)
        self.in_flight = min(
            self.steps, max(1, LOADS_IN_FLIGHT * vectors.accesses // max(streams, 1))
        )
        self.reads = [self._read(stage, load) for stage, load in loads]
        self.results = [
            (target, self._registers(target, self.width))
            for stage in stages
            if stage.is_map
            for target in stage.targets
            if not block.program.is_internal(target)
        ]

    @property
    def is_unrolled(self) -> bool:
        """Whether the loop over the vectors of a thread is unrolled."""
        return self.steps * self.width <= self.block.config.row_elements

    def _loads(self) -> list[tuple[RowStage, ir.TensorLoad]]:
        """List the vectorized loads, each once."""
        step, lane = tirx.Var("step", "int64"), tirx.Var("lane", "int64")
        found: list[tuple[RowStage, ir.TensorLoad, ir.Expr]] = []
        for stage, axes in zip(self.stages, self.axes, strict=True):
            for load in stage.loads:
                if not self._is_in_vectors(stage, load, axes[-1]):
                    continue
                place = replace(load, self._element(stage, step, lane))
                if not any(tvm_ffi.structural_equal(place, other) for *_, other in found):
                    found.append((stage, load, place))
        return [(stage, load) for stage, load, _ in found]

    def _is_in_vectors(self, stage: RowStage, load: ir.TensorLoad, axis: Axis) -> bool:
        """Whether a load is vectorized, rather than scalar where it is used."""
        return is_vector(self.block.program, load, axis)

    def _read(self, stage: RowStage, load: ir.TensorLoad) -> RowVectorLoad:
        """Choose the registers: those of the row, if the stage only copies it."""
        streamed = is_streamed(load, stage.rows)
        row = None
        if streamed and self._is_copy(stage, load):
            row = self.block.row_in_registers(stage.targets[0])
        if row is not None:
            size = self.steps * self.width
            ahead = self._registers(row, size) if self.block.config.keeps_shared else None
            return RowVectorLoad(stage, load, row, True, True, ahead=ahead)
        is_early = not streamed and self.is_unrolled and not any(map(has_load, load.indices))
        if is_early:
            dtype = str(load.source.dtype)
            is_widened = self.block.config.keeps_shared and dtype in HALF_TYPES
            dtype = "float32" if is_widened else dtype
            early = self.block.early_registers(load, self.steps * self.width, dtype)
            if early is not None:
                return RowVectorLoad(stage, load, early, False, False, True)
        size = self.width * (self.in_flight if streamed else 1)
        return RowVectorLoad(stage, load, self._registers(load.source, size), False, streamed)

    @staticmethod
    def _is_widened(read: RowVectorLoad) -> bool:
        """Whether elements are converted when they are loaded, once for all rows of a block."""
        return str(read.registers.dtype) != str(read.load.source.dtype)

    def _is_copy(self, stage: RowStage, load: ir.TensorLoad) -> bool:
        return (
            stage.is_map
            and stage.values[0].same_as(load)
            and self.block.program.is_internal(stage.targets[0])
        )

    def _is_read(self, stage: RowStage) -> bool:
        return any(read.is_row and read.stage is stage for read in self.reads)

    def _registers(self, buffer: ir.Var, size: int) -> ir.Var:
        threads = self.block.config.threads
        return self.block.scratch(
            [threads, size], str(buffer.dtype), f"{buffer.name}_vector", "local"
        )

    def _slot(
        self, read: RowVectorLoad, number: ir.Expr, step: ir.Expr, lane: ir.Expr
    ) -> list[ir.Expr]:
        vector = step if read.is_row or read.is_early else number if read.is_streamed else index(0)
        return [self.r, self.t, vector * self.width + lane]

    def _element(self, stage: RowStage, step: ir.Expr, lane: ir.Expr) -> Pairs:
        """Return the position of an element of a vector along a stage's axes."""
        axes = self._axes(stage)
        if (axes[-1].size or 0) % self.width == 0:
            return self._contiguous(stage, step, lane)
        flat = self._number(step) * self.width + lane
        return self.block.pairs(stage, bind(axes, unflatten(flat, axes)), self.r)

    def _contiguous(self, stage: RowStage, step: ir.Expr, lane: ir.Expr) -> Pairs:
        """Return the same, contiguous with the first element even beyond the end of an axis."""
        axes = self._axes(stage)
        flat = self._number(step) * self.width
        *outer, last = unflatten(flat, axes)
        return self.block.pairs(stage, bind(axes, [*outer, last + lane]), self.r)

    def _number(self, step: ir.Expr) -> ir.Expr:
        """Return the number in the row of the thread's vector of a step."""
        return step * self.block.config.threads + self.t

    def _axes(self, stage: RowStage) -> list[Axis]:
        return next(a for s, a in zip(self.stages, self.axes, strict=True) if s is stage)
