"""GEMM on a CPU, after Goto and van de Geijn: register tiles over packed panels of B.

    tasks in parallel: (batch, chunk of panels, block of block_m rows); adjacent tasks share B
      rows in groups that each have a B: those of the task's group                (ragged_rows)
      norm prologue: rows of the block are normalized into a buffer               (operand_a)
      for pass over K, of kc:
        copy panels of B [panels][kc][nr], unless packed at compile time      level 2 cache
        for part of mc rows of the block:  rows that are computed                (computed_a)
          for panel:  of half types in float32                          (half_operands)
            for tile of mr rows:                                                       (tile)
              acc[mr][nr] = 0, or partial sums of the pass before             registers
              for k in kc:  acc += broadcast A[mr, k] * B[k, nr];  prefetch the next panel
              last pass: epilogue; else keep partial sums                             (tile)

On tile registers (AMX) passes are inside of the loop over panels             (tile_blocking)

With a dot-product instruction (VNNI, BF16), a group of k is one 32-bit element of A and of B.
"""

from collections.abc import Sequence
from dataclasses import replace

from tvm import ir, tirx
from tvm.target import Target

from ....core.tir.loops import (
    block,
    ceildiv,
    constant,
    coordinates,
    index,
    loop,
    product,
    sequence,
    simplified,
    tasks,
    when,
)
from ....program.program import Program
from ...cpu.schedule import pays_threads
from ...elementwise.cpu.kernel import ElementwiseCpuConfig, maps_cpu
from ..problem.functions.packing import PackedConstant, packed_kernel
from .blocks.rounded import RoundedPanels
from .blocks.tile_operands import UnpackedTiles
from .blocks.weights import BlockWeights
from .config import FEW, CpuGemmConfig
from .operands.a import DirectA, NormalizedA, OperandA, RowBlock
from .operands.b import CopiedB, DirectB, OperandB, Panel, by_columns
from .operands.computed_a import ComputedA, computed_parts
from .operands.halves import WidenedB, is_half
from .operands.packed_weights import PackedB
from .operands.tiles import NormalizedTileRows, tile_rows
from .tile import GemmTile
from .tile_product import TileProduct


def gemm_cpu(
    program: Program,
    config: CpuGemmConfig,
    target: Target,
    others: Sequence[ElementwiseCpuConfig] = (),
    buffers: Sequence[ir.Var] = (),
) -> tuple[tirx.PrimFunc, dict[int, tirx.PrimFunc]]:
    """Make the kernel, and the functions that pack constants, by position among the inputs.

    Parameters
    ----------
    target
        A CPU, for the rows of a norm prologue.
    others
        Maps that read nothing of the product, such as the other parts of a concatenation: loop
        nests of their own.
    buffers
        Those of operands that such maps write.
    """
    body, b = gemm_tasks(config, target)
    packed = packed_of(b)
    body = body if config.dot is None else config.dot.around(body)
    body = sequence([*(maps_cpu(maps) for maps in others), body])
    return packed_kernel(program, body, packed, buffers)


def gemm_tasks(config: CpuGemmConfig, target: Target) -> tuple[tirx.Stmt, OperandB]:
    """Write the loop over the tasks of a GEMM, and tell how it reads B.

    Where few and many rows take other loops, one of two.
    """
    b = operand_b(config)
    body: tirx.Stmt = GemmLoops(config, operand_a(config, target), b).tasks()
    many = config.many
    if many is not None and isinstance(b, BlockWeights):
        unpacked = (
            RoundedPanels(b, many.view, many.sizes)
            if many.blocks is None
            else many.blocks.operand_b(b)
        )
        others = GemmLoops(many, operand_a(many, target), unpacked).tasks()
        rows = product([a.extent for a in config.view.m_axes])
        is_known = constant(rows) is not None
        body = others if is_known else tirx.IfThenElse(rows <= FEW, body, others)
    return body, b


def packed_of(b: OperandB) -> Sequence[PackedConstant]:
    """List the packed constants that B is read from."""
    if isinstance(b, BlockWeights | UnpackedTiles):
        return b.packed
    return [b] if isinstance(b, PackedB) else []


def operand_a(config: CpuGemmConfig, target: Target) -> OperandA:
    """Read A as its instruction and its prologue need it."""
    view, sizes, prologue, dot = config.view, config.sizes, config.prologue, config.dot
    if config.blocks is not None:
        return config.blocks.operand_a(view, sizes.block_m)
    if isinstance(dot, TileProduct):
        if prologue is None:
            return tile_rows(view, dot, sizes)
        return NormalizedTileRows(view, prologue, sizes.block_m, target, dot)
    if prologue is not None:
        return NormalizedA(view, prologue, sizes.block_m, target)
    if dot is None and config.ragged is None and (parts := computed_parts(view)):
        return ComputedA(view, parts, sizes.mc, sizes.kc)
    return DirectA(view)


def operand_b(config: CpuGemmConfig) -> OperandB:
    """Read B as the configuration says."""
    view, sizes = config.view, config.sizes
    if config.blocks is not None:
        read = config.blocks.weights, config.blocks.size, sizes.nr, config.blocks.by_pairs
        return config.blocks.operand_b(BlockWeights(view, *read))
    if config.b_source == "packed":
        rows = constant(product([a.extent for a in view.m_axes])) or sizes.mc
        if config.dot is None and is_half(view.b) and min(rows, sizes.mc) > sizes.mr:
            return WidenedB(view, sizes.nr, sizes.kc, sizes.panels == 1)
        return PackedB(view, sizes.nr)
    if config.b_source == "direct":
        return DirectB(view, sizes.nr)
    is_one = isinstance(config.dot, TileProduct)  # at a time
    return CopiedB(view, sizes.nr, sizes.kc, 1 if is_one else sizes.panels)


# Loops of a GEMM on a CPU around a register tile.
#
# A task makes some panels of columns of one block of rows. It passes over K in steps of kc, so that
# a panel stays in the level-2 cache, and keeps partial sums between passes in a buffer of its own.
class GemmLoops:
    """The loops around a register tile, from tasks inwards.

    Parameters
    ----------
    a, b : OperandA, OperandB
        How the operands are read.
    """

    def __init__(self, config: CpuGemmConfig, a: OperandA, b: OperandB) -> None:
        view, sizes = config.view, config.sizes
        self._blocks = config.blocks
        if config.blocks is not None:
            view = config.blocks.view(view)
        self._view, self._sizes = view, sizes
        self._a, self._b, self._ragged = a, b, config.ragged
        self._m = a.rows
        self._n = index(view.n_axes[-1].extent)
        self._k = index(view.k_axes[-1].extent)
        cut = len(view.k_axes) == 1 and constant(self._k) != sizes.kc
        self._passes = _passes(self._k, sizes.kc) if cut else index(1)
        self._tile = GemmTile(config, a, b, self._passes)
        self._panels_outside = isinstance(config.dot, TileProduct)

    def tasks(self) -> tirx.For:
        """Write the parallel loop; consecutive tasks share columns, so that a thread reuses B."""
        view, sizes = self._view, self._sizes
        around = (*view.batch, *view.n_axes[:-1])
        panels = ceildiv(self._n, sizes.nr)
        chunks = ceildiv(panels, sizes.panels)
        ragged, of_around = self._ragged, [a.extent for a in around]
        blocks = ceildiv(self._m if ragged is None else ragged.most, sizes.block_m)
        if ragged is not None:
            of_around = [ragged.extent(a) for a in around]
        extents = [*of_around, chunks, blocks]

        def task(number: ir.Expr) -> tirx.Stmt:
            *place, chunk, row_block = coordinates(number, extents)
            where = dict(zip((a.var for a in around), place, strict=True))
            buffers = [*self._a.buffers(), *self._b.buffers()]
            buffers += self._tile.task_buffers
            first = chunk * sizes.panels
            count = _block_of(sizes.panels, panels, first)

            start = row_block * sizes.block_m
            whole = RowBlock(where, start, index(0), index(0), self._k)

            def one_pass(number: ir.Expr) -> tirx.Stmt:
                first_k, k = self._range(number)
                panel = Panel(where, first, index(0), first_k, k, None)

                def part(n: ir.Expr) -> tirx.Stmt:
                    slot = n * sizes.mc
                    rows = RowBlock(where, start + slot, slot, first_k, k)
                    return loop("panel", count, lambda n: self._panel(rows, panel, n, number))

                parts = loop("part", sizes.block_m // sizes.mc, part)
                return _both(self._b.fill(panel, count), parts)

            def row_place(i: ir.Expr) -> dict[ir.Var, ir.Expr]:
                return {**where, **self._a.row_place(tirx.min(start + i, self._m - 1))}

            begin = self._tile.begin_task(row_place)
            passes = loop("pass", self._passes, one_pass)
            if self._panels_outside:
                passes = loop("panel", count, lambda n: self._all_passes(whole, first + n))
            body = sequence([*begin, passes, *self._tile.end_task(), *self._a.end()])
            made = block("task", _both(self._a.fill(whole), body), buffers)
            if ragged is None:
                return made
            return ragged.task(where, chunk, (start, sizes.block_m), made)

        terms = self._k if self._blocks is None else self._k * self._blocks.size
        is_parallel = pays_threads([*extents, sizes.block_m * sizes.nr, terms])
        is_parallel &= constant(product(extents)) != 1  # nor are threads woken for a single task
        return tasks(product(extents), task, is_parallel)

    def _range(self, pass_: ir.Expr) -> tuple[ir.Expr, ir.Expr]:
        """Return the first k of a pass, and how many there are."""
        first = pass_ * self._sizes.kc
        is_only = constant(self._passes) == 1
        return first, self._k if is_only else _block_of(self._sizes.kc, self._k, first)

    def _all_passes(self, whole: RowBlock, number: ir.Expr) -> tirx.Stmt:
        """Write all passes of one panel; its part in each stays in the level-1 cache."""

        def one_pass(pass_: ir.Expr) -> tirx.Stmt:
            first_k, k = self._range(pass_)
            rows = replace(whole, first_k=first_k, k=k)
            panel = Panel(whole.place, number, index(0), first_k, k, None)
            filled = self._b.fill(panel, index(1))
            return _both(filled, self._panel(rows, panel, index(0), pass_))

        return loop("pass", self._passes, one_pass)

    def _panel(self, rows: RowBlock, first: Panel, n: ir.Expr, pass_: ir.Expr) -> tirx.Stmt:
        """Write one panel; the last one may be narrower."""
        one = replace(first, number=first.number + n, slot=n)
        tiles = by_columns(
            self._view,
            self._sizes.nr,
            one.number,
            lambda columns: self._tiles(rows, replace(one, columns=columns), pass_),
        )
        return _both(self._b.begin_panel(one), tiles)

    def _tiles(self, rows: RowBlock, panel: Panel, pass_: ir.Expr) -> tirx.Stmt:
        """Write all tiles of some rows; the last one may have fewer."""
        sizes = self._sizes
        size = constant(self._m)
        most = sizes.mc // sizes.mr
        first = simplified(tirx.floordiv(rows.start, index(sizes.mr)))
        full = tirx.floordiv(self._m, index(sizes.mr))
        full = full if size is None else index(size // sizes.mr)
        here = tirx.min(index(most), full - first)
        if size is not None and size % sizes.block_m == 0:
            here = index(most)  # no block has fewer

        def tile(number: ir.Expr, height: int, clamp: bool) -> tirx.Stmt:
            offset = number * sizes.mr
            return self._tile.stmt(rows, panel, offset, height, clamp, pass_)

        stmts: list[tirx.Stmt] = []
        if size is None or size >= sizes.mr:
            # Rows beyond the last full tile make the count negative: no trips.
            stmts.append(self._tile.whole(rows, panel, here, pass_))
        if size is None:
            last = full * sizes.mr - rows.start
            inside = tirx.And(last >= 0, last < sizes.mc)
            inside = tirx.And(inside, full * sizes.mr < self._m)
            number, rows_left = tirx.floordiv(last, sizes.mr), self._m - full * sizes.mr
            rest = tile(number, sizes.mr, True)
            for height in reversed(self._heights()):
                rest = tirx.IfThenElse(rows_left <= height, tile(number, height, True), rest)
            stmts.append(when(inside, rest))
        elif size % sizes.mr:
            last = full - first
            rest = tile(last, size % sizes.mr, False)
            inside = tirx.And(last >= 0, last < most)
            if size <= sizes.mc:
                inside = tirx.const(True)
            stmts.append(when(inside, rest))
        return sequence(stmts)

    def _heights(self) -> list[int]:
        """List the heights of tiles for rows that are left: few rows are those of one step."""
        if self._blocks is None:
            return []
        return [1, *range(4, self._sizes.mr, 4)]


def _both(first: tirx.Stmt | None, second: tirx.Stmt) -> tirx.Stmt:
    return second if first is None else sequence([first, second])


def _passes(k: ir.Expr, kc: int) -> ir.Expr:
    """Count the passes over K; where K is empty, one pass stores the zeros."""
    count = ceildiv(k, kc)
    return count if constant(count) is not None else tirx.max(count, index(1))


def _block_of(size: int, extent: ir.Expr, start: ir.Expr) -> ir.Expr:
    """Return the length of a block of an axis: the last one may be shorter."""
    whole = constant(extent)
    if whole is not None and whole % size == 0:
        return index(size)
    if whole is not None and whole < size:
        return index(whole)
    return tirx.min(index(size), extent - start)
