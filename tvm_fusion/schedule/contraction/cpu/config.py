"""Configurations of a GEMM on a CPU: the default by a model, and the design space around it.

Each is plain data; the kernel (kernel.py) is made of any of them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from tvm import DataType, ir

from ....core.contract.template import Config
from ....core.tir.loops import constant, product
from ....device import Device
from ....program.stage import Axis
from ...index.address import conditional_loads
from ...index.design_space import default_first, plain
from ...instructions.tiles import TILE_ROWS
from ..problem.gemm_view import GemmView, gemm_view, interleave_parts
from ..problem.norm_prologue import NormPrologue
from ..problem.sum_of_products import SumOfProducts
from .blocking import (
    MAX_MR,
    MAX_VECTORS,
    MC,
    SYMBOLIC,
    Blocking,
    GemmProblem,
    Machine,
    cycles_of,
    default_blocking,
)
from .blocks.choice import block_blocking, block_product, tile_blocks
from .blocks.product import BlockProduct
from .blocks.rounded import in_words, rounded_product
from .blocks.weights import is_packable
from .dot_products import WordProduct, dot_product
from .operands.computed_a import computed_parts
from .operands.halves import is_half
from .operands.packed_weights import packable
from .ragged_rows import RaggedTasks, ragged_tasks
from .tile_blocking import default_tile_blocking, tile_blockings
from .tile_product import tile_product

PART_TILES = (1, 2, 4, 8)  # rows of a part of a block, in tiles
PASSES = (1, 2, 4)  # over K, times the fewest
FEW = 12  # rows that are multiplied in vectors
ROWS, WIDTH = 512, 32  # of a task that unpacks weights to bfloat16, if M is symbolic; of its panels
SLOWER = 1.2  # cycles of a multiplication in a register tile, over the fewest


@dataclass(frozen=True, eq=False)
class CpuGemmConfig:
    """Configuration of a GEMM on a CPU: decided by the claim, consumed by its emission."""

    contraction: SumOfProducts
    # The contraction as GEMMs: K in groups of the dot product, and a panel of B holds columns of
    # all parts of a column split.
    view: GemmView
    sizes: Blocking  # sizes of tiles and blocks
    lanes: int  # of a vector of accumulators
    # How B is read: packed at compile time, copied by each task, in place, or packed as numbers in
    # blocks.
    b_source: Literal["packed", "copied", "direct", "blocks"]
    dot: WordProduct | None  # the instruction that multiplies groups of k
    prologue: NormPrologue | None  # the program of A's rows, which tasks normalize
    ragged: RaggedTasks | None  # groups of rows, each of which has a B
    # How numbers in blocks are multiplied; the view is over single terms then.
    blocks: BlockProduct | None = None
    # The configuration for more than :data:`FEW` rows, where their number is symbolic.
    many: CpuGemmConfig | None = None


def default(
    contraction: SumOfProducts,
    device: Device,
    constants: Collection[ir.Var] = (),
    prologue: NormPrologue | None = None,
) -> CpuGemmConfig | None:
    """Choose a configuration by the model; ``None`` where no panels of B are packed or read.

    Parameters
    ----------
    constants
        Inputs that are known at compile time.
    prologue
        The program of A's rows.
    """
    if (in_blocks := _in_blocks(contraction, device, constants, prologue)) is not None:
        return in_blocks
    gemm = _gemm(contraction, device, constants, prologue)
    return None if gemm is None else gemm.config(gemm.default())


def configs(
    contraction: SumOfProducts,
    device: Device,
    constants: Collection[ir.Var] = (),
    prologue: NormPrologue | None = None,
) -> Iterator[CpuGemmConfig]:
    """Enumerate configurations that fit registers and caches, each once, the default first.

    Parameters are those of :func:`default`.
    """
    if (in_blocks := _in_blocks(contraction, device, constants, prologue)) is not None:
        yield in_blocks
        return
    gemm = _gemm(contraction, device, constants, prologue)
    if gemm is None:
        return
    chosen = gemm.default()
    every = dict.fromkeys(blockings(gemm.problem, gemm.machine))
    yield from map(gemm.config, default_first(chosen, every))


def blocking_of(gemm: CpuGemmConfig) -> Config:
    """Write what a tuner varies of a GEMM, its blocking, as plain data."""
    return plain(gemm.sizes)


def _in_blocks(
    contraction: SumOfProducts,
    device: Device,
    constants: Collection[ir.Var],
    prologue: NormPrologue | None,
) -> CpuGemmConfig | None:
    """Configure a GEMM whose B is a constant of numbers in blocks; ``None`` for others."""
    view = gemm_view(contraction, allows_conditions=True, allows_symbolic=True)
    if view is None or prologue is not None or not is_packable(contraction, view, constants):
        return None
    blocks = block_product(view, contraction.dtype, device)
    if blocks is None:
        return None
    split, unit = contraction.column_split, Machine.of(device).unit
    vectors = 1 if split is None else split.count
    if split is not None:
        if split.width % blocks.lanes:
            return None
        view = interleave_parts(view, split, blocks.lanes)
        blocks = blocks.of(view)

    def config(blocks: BlockProduct, many: CpuGemmConfig | None = None) -> CpuGemmConfig:
        most = blocks.rows(unit, vectors)
        sizes = block_blocking(view, blocks, Machine.of(device), vectors, most)
        read = contraction, view, sizes, blocks.lanes
        return CpuGemmConfig(*read, "blocks", None, None, None, blocks, many)

    rows, few = _extent(view.m_axes), config(blocks)
    if rows is not None and rows <= FEW:
        return few
    if (rounded := _rounded(few, blocks, device)) is not None:
        return replace(few, many=rounded)
    tiles = tile_blocks(blocks, device)
    if tiles is None:
        return few
    return config(tiles) if rows is not None else config(blocks, config(tiles))


def _rounded(few: CpuGemmConfig, blocks: BlockProduct, device: Device) -> CpuGemmConfig | None:
    """Configure the same product of many rows in bfloat16; ``None`` where it may not be used."""
    view = few.view
    product = rounded_product(view, blocks, device)
    width = few.sizes.nr
    if product is None or WIDTH % width:
        return None
    view = in_words(view)
    problem = GemmProblem(
        m=_extent(view.m_axes) or ROWS,
        n=constant(view.n_axes[-1].extent),
        k=constant(view.k_axes[-1].extent),
        batch=_extent((*view.batch, *view.n_axes[:-1])),
        vectors=(WIDTH // TILE_ROWS,),
        copies=True,
        tile_words=product.words,
    )
    sizes = default_tile_blocking(problem, Machine.of(device))
    if sizes.kc % (blocks.size // product.group):
        return None
    return CpuGemmConfig(few.contraction, view, sizes, TILE_ROWS, "blocks", product, None, None)


@dataclass(frozen=True, eq=False)
class _Gemm:
    """What all configurations of a GEMM share."""

    contraction: SumOfProducts
    view: GemmView
    machine: Machine
    problem: GemmProblem
    dot: WordProduct | None
    prologue: NormPrologue | None
    ragged: RaggedTasks | None

    def default(self) -> Blocking:
        """Choose a blocking by the model."""
        choose = default_blocking if self.problem.tile_words is None else default_tile_blocking
        return choose(self.problem, self.machine)

    def config(self, sizes: Blocking) -> CpuGemmConfig:
        """Make the configuration of a blocking."""
        view, split = self.view, self.contraction.column_split
        if split is not None:
            view = interleave_parts(view, split, sizes.nr // split.count)
        lanes = self.machine.unit.lanes if self.problem.tile_words is None else TILE_ROWS
        source = self._b_source(sizes)
        given = self.contraction, view, sizes, lanes, source, self.dot, self.prologue, self.ragged
        return CpuGemmConfig(*given)

    def _b_source(self, sizes: Blocking) -> Literal["packed", "copied", "direct"]:
        if not self.problem.copies:
            return "packed"
        if self.problem.tile_words is not None:
            return "copied"
        m = self.problem.m
        is_single_tile = m is not None and m <= sizes.mr and self.dot is None
        outer = [constant(a.extent) for a in self.view.k_axes[:-1]]
        panel = math.prod(d or 1 for d in outer) * sizes.kc * sizes.nr
        fits = None not in outer and panel <= self.machine.panel
        return "direct" if self.problem.n is not None and (is_single_tile or not fits) else "copied"


def _gemm(
    contraction: SumOfProducts,
    device: Device,
    constants: Collection[ir.Var],
    prologue: NormPrologue | None,
) -> _Gemm | None:
    ragged = ragged_tasks(contraction)
    contraction = contraction if ragged is None else ragged.contraction
    view = gemm_view(contraction, allows_conditions=True, allows_symbolic=True)
    if view is None or conditional_loads(view.b):
        return None
    has_choices = bool(conditional_loads(view.a))
    if has_choices and (prologue is not None or ragged is not None or not computed_parts(view)):
        return None
    is_packed = packable(contraction, view, constants) is not None
    if not (view.m_axes or is_packed):
        return None
    machine = Machine.of(device, DataType(contraction.dtype).bits)
    tiles = tile_product(contraction, view, is_packed, device)
    tile_words = None if tiles is None else tiles.words
    dot: WordProduct | None = tiles
    if dot is None and prologue is None:
        dot = dot_product(contraction, view, is_packed, device)
    if dot is not None and has_choices:
        return None
    if dot is not None:
        view = dot.groups(view)
    lanes = machine.unit.lanes if tile_words is None else TILE_ROWS
    split, panels = contraction.column_split, view
    widths = tuple(range(1, MAX_VECTORS + 1))
    if split is not None:
        panels = interleave_parts(view, split, lanes)
        fitting = (v for v in widths if split.width % (v * lanes) == 0)
        widths = tuple(split.count * v for v in fitting if split.count * v <= MAX_VECTORS)
        if not widths:
            return None
    is_plain = dot is None and prologue is None and ragged is None
    problem = GemmProblem(
        m=_extent(view.m_axes),
        n=constant(panels.n_axes[-1].extent),
        k=constant(view.k_axes[-1].extent),
        batch=_extent((*view.batch, *panels.n_axes[:-1])),
        whole_k=len(view.k_axes) > 1,
        vectors=widths,
        copies=not is_packed,
        tile_words=tile_words,
        norm_k=None if prologue is None else prologue.k,
        computes_a=is_plain and bool(computed_parts(view)),
        widens_b=is_plain and is_half(view.b),
    )
    return _Gemm(contraction, view, machine, problem, dot, prologue, ragged)


def _extent(axes: Collection[Axis]) -> int | None:
    return constant(product([a.extent for a in axes]))


def blockings(problem: GemmProblem, machine: Machine) -> Iterator[Blocking]:
    """Enumerate sizes that fit the registers and caches: what a tuner may measure."""
    if problem.tile_words is not None:
        yield from tile_blockings(problem, machine)
        return
    unit, k = machine.unit, problem.k
    rows, partial = problem.m or MC, machine.copied if problem.copies else machine.panel
    fastest = min(
        cycles_of(mr, vectors) / (mr * vectors)
        for vectors in problem.vectors
        for mr in range(1, min(MAX_MR, unit.rows(vectors), rows) + 1)
    )
    for vectors in problem.vectors:
        nr = vectors * unit.lanes
        most, columns = machine.panel // nr, math.ceil((problem.n or SYMBOLIC * nr) / nr)
        depths = [most]
        if k is not None:
            fewest = 1 if problem.whole_k else max(1, math.ceil(k / most))
            times = (1,) if problem.whole_k else PASSES
            depths = list(dict.fromkeys(math.ceil(k / (fewest * n)) for n in times))
        for mr in range(1, min(MAX_MR, unit.rows(vectors), rows) + 1):
            if cycles_of(mr, vectors) > SLOWER * fastest * mr * vectors:
                continue
            tiles = math.ceil(rows / mr)
            for kc, height in itertools.product(depths, PART_TILES):
                mc = min(height, tiles) * mr
                if height > tiles or mc * kc * 4 > machine.l2_bytes:
                    continue
                for parts, panels in itertools.product(_halves(tiles // height), _halves(columns)):
                    if problem.norm_k is not None and parts > 1:
                        continue
                    in_passes = k is None or kc < k
                    sums = mc * parts * panels * nr if in_passes else 0
                    copied = kc * panels * nr if problem.copies else 0
                    if sums <= partial and copied <= machine.copied:
                        yield Blocking(mr, nr, mc * parts, mc, panels, kc)


def _halves(count: int) -> Iterator[int]:
    """Yield a number, half of it, and so on."""
    while count:
        yield count
        count //= 2
