"""RMS norm prologue of a skinny GEMM: every block stages the normalized rows in shared memory.

    for row in m, unrolled; thread t takes vectors t, t + threads, ... of K:
      shared[row, k] = float32(A'[row, k])        A' = x * weight, without the norm's scale
      partial[row, t] = sum of x[row, k]^2                                 shared, barrier
    threads 0 .. f - 1:  folded[row, t] = sum of partial[row, t :: f]    barrier
    main loop over shared A; epilogue multiplies by scale(sum of folded[row, :])

The rows are a few thousand elements; without staging each column would compute them again. f is
the configuration's ``folded_sums``, at most the threads of a block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import ir, tirx

from ....._tvm.ir.buffer import scratch
from .....core.tir.expressions import load
from .....core.tir.loops import (
    Body,
    block,
    ceildiv,
    coordinates,
    index,
    local,
    product,
    sequence,
    substitute,
    unrolled,
    when,
)
from .....program.stage import Axis
from ....gpu.memory.vector_loads import ElementLoads
from ....gpu.registers.buffers import RegisterBuffers
from .config import GemvConfig
from .thread_tile import ThreadTile

VECTOR_SIZES = (8, 4, 2, 1)  # of a row, the widest that divides it


@dataclass(frozen=True, eq=False)
class NormalizedRows:
    """Normalized rows in shared memory, and the sums of the norm."""

    config: GemvConfig  # the product, with a norm scale
    # Two-dimensional, at least as large as all rows; the slices' partial sums reuse it.
    shared: ir.Var
    # ``[m, threads]`` and ``[m, config.folded_sums]``: sums over a row by thread, and reduced.
    partial: ir.Var
    folded: ir.Var

    @classmethod
    def of(cls, config: GemvConfig, shared: ir.Var) -> NormalizedRows | None:
        """Declare the buffers; ``None`` without a norm prologue."""
        dtype = config.contraction.dtype
        if config.norm_scale is None:
            return None

        def sums(count: int) -> ir.Var:
            return scratch([index(config.m), index(count)], dtype, "row_sums", scope="shared")

        return cls(config, shared, sums(config.threads), sums(config.folded_sums))

    @property
    def value(self) -> ir.Expr:
        """The staged A, over the axes of the product."""
        row, k = (_flat(axes) for axes in (self.config.m_axes, self.config.k_axes))
        return load(self.shared, self._place(row, k))

    def stage(self, number: ir.Expr, thread: ir.Expr) -> tirx.Stmt:
        """Compute a thread's vectors of every row, and its part of the sum over the row."""
        config = self.config
        assert config.norm_scale is not None
        extent = product([a.extent for a in config.k_axes])
        tiles = [ThreadTile(config.n_axes, config.k_axes, k, 1, True) for k in VECTOR_SIZES]
        tile = next(t for t in tiles if t.divides())
        stage, dtype = config.contraction.stage, config.contraction.dtype
        elements = ElementLoads(tile.analyzer((*stage.axes, *stage.reduce)))
        values = [elements.read(tile.at(config.a, k, 0)) for k in range(tile.k)]
        summands = [elements.read(tile.at(config.norm_scale.term, k, 0)) for k in range(tile.k)]
        registers = RegisterBuffers(elements.vectors(), 1)
        total = local("row_sum", [1], dtype)

        def row(r: ir.Expr) -> tirx.Stmt:
            def step(n: ir.Expr) -> tirx.Stmt:
                k_tile = n * config.threads + thread
                here = config.axes_at(number, r, 0, index(0)) | {tile.k_tile: k_tile}

                def held(expr: ir.Expr) -> ir.Expr:
                    return substitute(registers.values(expr, index(0)), here)

                stmts = [registers.fill(index(0), here)]
                for i, (value, summand) in enumerate(zip(values, summands, strict=True)):
                    place = self._place(r, k_tile * tile.k + i)
                    stored = tirx.Cast(dtype, held(value))
                    stmts.append(tirx.BufferStore(self.shared, stored, place))
                    added = load(total, [index(0)]) + held(summand)
                    stmts.append(tirx.BufferStore(total, added, [0]))
                return when(k_tile * tile.k < extent, sequence(stmts))

            steps = ceildiv(extent, tile.k * config.threads)
            return sequence(
                [
                    tirx.BufferStore(total, tirx.const(0, dtype), [0]),
                    unrolled("step", steps, step),
                    tirx.BufferStore(self.partial, load(total, [index(0)]), [r, thread]),
                ]
            )

        return block("rows", self._rows(row), [*registers.arrays, total])

    def fold(self, thread: ir.Expr) -> tirx.Stmt:
        """Reduce the threads' sums of each row to a few, in a block's first threads."""
        config, folded = self.config, self.config.folded_sums
        total = local("row_sum", [1], config.contraction.dtype)

        def row(r: ir.Expr) -> tirx.Stmt:
            def add(n: ir.Expr) -> tirx.Stmt:
                value = load(total, [index(0)]) + load(self.partial, [r, n * folded + thread])
                inside = n * folded + thread < config.threads
                return when(inside, tirx.BufferStore(total, value, [0]))

            return sequence(
                [
                    tirx.BufferStore(total, tirx.const(0, config.contraction.dtype), [0]),
                    unrolled("i", -(-config.threads // folded), add),
                    tirx.BufferStore(self.folded, load(total, [index(0)]), [r, thread]),
                ]
            )

        return when(thread < folded, block("fold", self._rows(row), [total]))

    def scale(self, row: ir.Expr, place: list[ir.Expr], total: ir.Var) -> tuple[tirx.Stmt, ir.Expr]:
        """Finish the sum over a row, and express the scale of the row's results."""
        config = self.config
        assert config.norm_scale is not None

        def add(n: ir.Expr) -> tirx.Stmt:
            value = load(total, [index(0)]) + load(self.folded, [row, n])
            return tirx.BufferStore(total, value, [0])

        start = tirx.BufferStore(total, tirx.const(0, config.contraction.dtype), [0])
        stmt = sequence([start, unrolled("i", config.folded_sums, add)])
        return stmt, config.norm_scale.at(place, load(total, [index(0)]), config.contraction.stage)

    @property
    def buffers(self) -> list[ir.Var]:
        """List the buffers of a block besides ``shared``."""
        return [self.partial, self.folded]

    def _rows(self, body: Body) -> tirx.Stmt:
        return unrolled("row", self.config.m, body)

    def _place(self, row: ir.Expr, k: ir.Expr) -> list[ir.Expr]:
        flat = row * product([a.extent for a in self.config.k_axes]) + k
        return coordinates(flat, self.shared.ty.shape)


def _flat(axes: Sequence[Axis]) -> ir.Expr:
    """Linearize a place of some axes, row-major."""
    place = index(0)
    for axis in axes:
        place = place * axis.extent + axis.var
    return place
