"""FlashAttention on AMD's matrix cores: one launch, softmax in registers.

grid: batch * heads * ceil(queries / block_m) blocks; block: waves of 16 or 32 rows each; of wide
heads two waves share rows, and each has half of the columns
LDS: k[block_n, d], v[d, block_n], swizzled; q[block_m, d] before, or next to them
registers of a wave: acc[rows, d], s[rows, block_n], m_i, l_i; q_frag, or loaded for every tile
q -> registers -> LDS -> q_frag; k(0) -> registers -> LDS
for n in range(tiles that a row of the block sees):
    barrier; v(n) -> registers, on its way
    s = mfma(k_frag, q_frag)                                                 (wave_block)
    v(n) -> LDS, turned                                                      (wave_loads)
    s = score(s); p = exp(s - m_i), l_i += p
    barrier; k(n + 1) -> registers, on its way
    acc += mfma(v_frag, p_frag)
    k(n + 1) -> LDS
acc / l_i -> epilogue -> global, eight columns of a lane
"""

from __future__ import annotations

from dataclasses import replace

from tvm import ir, tirx

from .....core.tir.expressions import load
from .....core.tir.loops import block, coordinates, index, kernel, loop, sequence, unrolled, when
from .....program.program import Program
from ....gpu.memory.shared_tiles import touch
from ....gpu.memory.vector_moves import AMD_MOVES
from ....gpu.threads.warp import each_thread
from ...problem.online_softmax import assign, float_
from ...problem.pattern import FLOAT
from ..grid import query_blocks
from ..problem import FlashProblem
from .block import WaveBlock
from .config import RUN, FlashWaveConfig


def flash_wave_kernel(
    program: Program, problem: FlashProblem, config: FlashWaveConfig
) -> tirx.PrimFunc:
    """Make the kernel."""
    is_vector = problem.is_vector and problem.v.extent % RUN == 0
    problem = replace(problem, staged=FLOAT, is_vector=is_vector)

    def write(where: dict[ir.Var, ir.Expr], first: ir.Expr) -> tirx.Stmt:
        axes = [("threadIdx.y", config.warps), ("threadIdx.x", config.lanes)]

        def thread(g: ir.Expr, t: ir.Expr) -> tirx.Stmt:
            return _FlashBlock(problem, config, where, first, g, t).stmt()

        return each_thread(axes, thread)

    return kernel(program, query_blocks(problem, config, write))


class _FlashBlock(WaveBlock):
    """One lane of a block."""

    def stmt(self) -> tirx.Stmt:
        """Write all that the lane does."""
        config, zero = self._config, index(0)
        q_pad = self._q_loads.pad(config.block_m)
        pads = [x.pad(config.block_n) for x in (self._k_loads, self._v_loads)]
        kept = [AMD_MOVES.barrier(), self._load_queries(), AMD_MOVES.barrier()]
        stmts = [
            touch(self._shared, int(self._shared.ty.shape[0]) - 1),
            *self._find_limits(),
            self._issue_queries(),
            self._q_loads.store(config.block_m, zero),
            *([] if q_pad is None else [q_pad]),
            *self._keep_limits(),
            *(kept if config.q_in_registers else []),
            self._issue_keys(zero),
            self._store_keys(zero),
            *(x for x in pads if x is not None),
            self._initialize(),
            loop("n", self._tiles.count, self._tile),
            *self._finish(),
        ]
        return block("flash_attention", sequence(stmts), self._buffers)

    def _tile(self, n: ir.Expr) -> tirx.Stmt:
        assert AMD_MOVES.scheduling_barrier is not None
        fence = AMD_MOVES.scheduling_barrier()
        return sequence(
            [
                AMD_MOVES.barrier(),
                self._issue_values(n),
                fence,
                self._multiply_keys(n),
                fence,
                self._store(self._v_loads, n),
                self._softmax(n),
                AMD_MOVES.barrier(),
                self._issue_keys(n + 1),
                fence,
                self._multiply_values(n),
                fence,
                self._store_keys(n + 1),
            ]
        )

    def _finish(self) -> list[tirx.Stmt]:
        """Store the results of the wave's rows."""
        pattern, columns = self._problem.pattern, self._problem.v.extent

        def inverse(slot: ir.Expr) -> tirx.Stmt:
            return assign(load(self._alpha, [slot]), float_(1) / self._divisor(slot))

        def of_cell(i: ir.Expr) -> tirx.Stmt:
            slot, cell = coordinates(i, [self._slots, self._column_cells])
            row = self._g * self._config.rows_of_warp + self._own_row(slot)
            column = self._first_column + self._own_column(cell, index(0))
            query = self._first + row
            at = {**self._where, self._problem.query.var: query}

            def scaled(lane: ir.Expr) -> tirx.Stmt:
                value = load(self._acc, [i * RUN + lane]) * load(self._alpha, [slot])
                return assign(load(self._result, [lane]), value)

            stored = [unrolled("lane", RUN, scaled), self._store_vector(at, column, index(0))]
            stmt = sequence(stored)
            if pattern.masked_weight is not None:
                # NaN compares false, too.
                has_sum = load(self._l_i, [slot]) > float_(0)
                stmt = tirx.IfThenElse(has_sum, stmt, self._store_masked(at, column))
            inside = query < index(self._problem.query.extent)
            return when(tirx.all(inside, column < columns), stmt)

        return [
            self._all_sums(),
            unrolled("slot", self._slots, inverse),
            unrolled("cell", self._slots * self._column_cells, of_cell),
        ]
