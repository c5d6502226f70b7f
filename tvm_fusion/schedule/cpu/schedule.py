"""One generic CPU schedule: parallel outer loops, register tiles, vectors innermost.

Per loop nest, whatever the operators were:

* elementwise producers are inlined into elementwise consumers;
* a contraction (a sum over two operands whose elements serve several results) is computed in a
  register tile of rows x vectors, inside the nest that consumes it where the two walk alike;
* every other nest runs its outer loops in parallel and its last spatial axis as vectors.

contraction:  parallel for outer = (shared axes, column tile, row tile):    or rows outside
                  acc[rows, columns] = 0                     the register tile, columns as vectors
                  for k:  acc += A[rows, k] * B[k, columns]
                  C[rows, columns] = epilogue(acc)
other nests:  parallel for outer spatial loops:
                  for k, vector of the last axis:  C[.., vector] = f(..)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tvm import ir, s_tir, tirx
from tvm.s_tir.schedule import SBlockRV
from tvm.target import Target

from ...core.tir.loops import constant, product
from ...device import Device, device_of
from .block_info import BlockInfo, block_info, inline_maps

PARALLEL_WORK = 16384  # iterations below which waking a second thread costs more than it saves
WIDE_TILE = 2048  # columns of a tile that LLVM vectorises; 8 rows of it fit into a level-2 cache
VECTORS = 4  # registers of the innermost loop of a nest that is no contraction
CORES = 8  # if unknown
PARALLEL_TASKS = 32  # tasks that keep the cores of a usual machine evenly busy


def pays_threads(extents: Sequence[ir.Expr | int], least: int = PARALLEL_WORK) -> bool:
    """Whether loops of these extents are worth waking threads; symbolic ones are."""
    work = constant(product(extents))
    return work is None or work >= least


def schedule_cpu(
    func: tirx.PrimFunc, target: Target, vectors: int = VECTORS
) -> s_tir.Schedule | None:
    """Schedule any PrimFunc over SBlocks.

    Parameters
    ----------
    vectors
        Vector registers of the innermost loop of nests that are no contractions. LLVM takes up to
        0.3 s for 4 of them that gather elements, a tenth of that for one.

    Returns
    -------
    s_tir.Schedule or None
        None when it has no block structure to work on.
    """
    sch = s_tir.Schedule(func)
    root = sch.get_sblock("root")
    if not sch.get_child_blocks(root):
        return None
    inline_maps(sch)
    registers = VectorRegisters.of(target)
    plain = [(b, info) for b in sch.get_child_blocks(root) if (info := block_info(sch, b))]
    for block, info in [pair for pair in plain if pair[1].is_contraction]:
        epilogue = tile_contraction(sch, block, info, registers)
        plain = [
            (b, i) for b, i in plain if not _same(sch, b, block) and not _same(sch, b, epilogue)
        ]
    for block, info in plain:
        plain_nest(sch, block, info, registers, vectors)
    return sch


@dataclass(frozen=True)
class VectorRegisters:
    """Vector registers of a CPU: float32 ``lanes``, accumulator ``rows`` of two vectors."""

    lanes: int
    rows: int

    @classmethod
    def of(cls, cpu: Device | Target) -> VectorRegisters:
        """Fill half of the registers of a CPU, or of the target's: 16 of 32, 8 rows of two."""
        device = device_of(cpu)
        return cls((device.fixed_vector_bits or 128) // 32, (device.vector_registers or 16) // 4)


def tile_contraction(
    sch: s_tir.Schedule, block: SBlockRV, info: BlockInfo, registers: VectorRegisters
) -> SBlockRV:
    """Compute a contraction tile by tile inside its consumer's nest; returns the consumer."""
    epilogue = _aligned_consumer(sch, block, info)
    if epilogue is None:
        epilogue = sch.cache_write(block, 0, "global")
    sch.set_scope(block, 0, "local")

    column = info.spatial[-1]
    streamed, other = _operands(info, column)
    row = info.reusing_axes(streamed)[-1]
    height = _tile_size(info.extents[row], registers.rows, registers.rows)
    if 2 * height < registers.rows < (info.extents[row] or 0):
        height = registers.rows  # prime: a few rows past the end cost less than one-row tiles
    width = _tile_size(info.extents[column], 2 * registers.lanes, registers.lanes)
    vectorize = width > 1
    if 4 * width < registers.lanes < (info.extents[column] or 0):
        # No divisor makes decent vectors: wide tiles, whose column loop LLVM vectorises itself.
        width, vectorize = _tile_size(info.extents[column], WIDE_TILE, WIDE_TILE), False

    # The larger operand is walked once; the smaller one comes round again from the cache.
    loops = dict(zip(info.spatial, sch.get_loops(epilogue), strict=True))
    row_outer, row_inner = sch.split(loops[row], [None, height])
    column_outer, column_inner = sch.split(loops[column], [None, width])
    rest = [a for a in info.spatial if a not in (row, column)]
    shared = [loops[a] for a in rest if info.uses(other, a)]
    own = [loops[a] for a in rest if not info.uses(other, a)]
    if _volume(streamed) >= _volume(other):
        order = [*shared, *own, column_outer, row_outer]
    else:
        order = [*shared, row_outer, *own, column_outer]
    sch.reorder(*order, row_inner, column_inner)
    outer = sch.fuse(*order)

    # The contraction's loops inside it: reduction outside, the register tile innermost.
    sch.compute_at(block, outer, preserve_unit_loops=True)
    inner = sch.get_loops(block)[1:]
    tile = dict(zip(info.spatial, inner, strict=False))
    reduce = inner[len(info.spatial) :]
    sch.reorder(*[tile[a] for a in rest], *reduce, tile[row], tile[column])
    for rows, columns in ((tile[row], tile[column]), (row_inner, column_inner)):
        sch.unroll(rows)
        if vectorize:
            sch.vectorize(columns)
        else:
            sch.reorder(columns, rows)
    sch.parallel(outer)
    sch.decompose_reduction(block, reduce[0])
    return epilogue


def plain_nest(
    sch: s_tir.Schedule,
    block: SBlockRV,
    info: BlockInfo,
    registers: VectorRegisters,
    vectors: int = VECTORS,
) -> None:
    """Run outer loops in parallel, the last spatial axis as vectors if that reads in order."""
    loops = sch.get_loops(block)
    spatial = [loops[i] for i in info.spatial]
    reduce = [loops[i] for i in info.reduce]
    if not spatial:
        return
    last = info.spatial[-1]
    if info.is_map or any(info.is_contiguous(load, last) for load in info.reads):
        width = _tile_size(info.extents[last], vectors * registers.lanes, registers.lanes)
        outer, inner = sch.split(spatial[-1], [None, width])
        sch.reorder(*spatial[:-1], outer, *reduce, inner)
        if width > 1:
            sch.vectorize(inner)
        spatial[-1] = outer
    else:
        sch.reorder(*spatial, *reduce)
    if _count(info, info.spatial + info.reduce) >= PARALLEL_WORK:
        # Fewer loops fused mean fewer divisions to recover their indices; enough tasks come first.
        enough = _count(info, info.spatial[:-1]) >= PARALLEL_TASKS
        sch.parallel(sch.fuse(*(spatial[:-1] if enough else spatial)))


def _aligned_consumer(sch: s_tir.Schedule, block: SBlockRV, info: BlockInfo) -> SBlockRV | None:
    """Return the only consumer if it is a map that reads the block's result at its own position."""
    consumers = sch.get_consumers(block)
    other = block_info(sch, consumers[0]) if len(consumers) == 1 else None
    if other is None or not other.is_map or len(other.spatial) != len(info.spatial):
        return None
    reads = [load for load in other.reads if load.source.same_as(info.write.buffer)]
    identity = all(
        len(load.indices) == len(other.variables)
        and all(i.same_as(v) for i, v in zip(load.indices, other.variables, strict=True))
        for load in reads
    )
    extents = tuple(info.extents[i] for i in info.spatial)
    return consumers[0] if identity and extents == other.extents else None


def _operands(info: BlockInfo, column: int) -> tuple[ir.TensorLoad, ir.TensorLoad]:
    """Tell the operand whose elements lie along the vector axis from the other one."""
    reads = sorted(info.reads, key=lambda load: not info.is_contiguous(load, column))
    streamed = next((load for load in reads if info.uses(load, column)), reads[0])
    # Both may be elements of one tensor, as in the product of a matrix with itself.
    other = min(
        reads, key=lambda load: (info.uses(load, column), load.source.same_as(streamed.source))
    )
    return streamed, other


def _tile_size(extent: int | None, limit: int, lanes: int) -> int:
    """Pick the largest divisor that is whole vectors or fits into one; 1 for a symbolic extent."""
    if extent is None:
        return 1
    return max(d for d in range(1, limit + 1) if extent % d == 0 and (d <= lanes or d % lanes == 0))


def _volume(load: ir.TensorLoad) -> int:
    return math.prod(int(d) if isinstance(d, tirx.IntImm) else 1 for d in load.source.shape)


def _count(info: BlockInfo, axes: tuple[int, ...]) -> int:
    """Count the iterations of some axes; a symbolic one counts as many."""
    return math.prod(info.extents[a] or PARALLEL_WORK for a in axes)


def _same(sch: s_tir.Schedule, a: SBlockRV, b: SBlockRV) -> bool:
    return sch.get(a).same_as(sch.get(b))
