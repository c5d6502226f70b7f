"""The elementwise kernel on a GPU: one launch, coalesced vectors of 16 bytes.

grid: for each iteration space a range of blocks; block: 256 threads
space with a transposed load (see transpose_config):
    tile: memory -> shared memory; __syncthreads; columns of the tile -> results in vectors
other spaces:
    each thread: load `per_thread` vectors; compute element by element; store vectors
"""

from collections.abc import Callable
from dataclasses import dataclass

from tvm import ir, tirx

from ....core.tir.loops import (
    add,
    block,
    ceildiv,
    choose,
    constant,
    coordinates,
    kernel,
    product,
    sequence,
    threads,
    when,
)
from ....program.program import Program
from ..iteration_space import IterationSpace
from .config import ElementwiseGpuConfig, PointConfig
from .transpose_config import TransposeConfig
from .transposes import load_tiles, store_tiles
from .vectors import VectorConfig, compute

THREADS = 256
Work = Callable[[ir.Expr, ir.Expr], tirx.Stmt]


@dataclass(frozen=True)
class BlockRange:
    """A range of blocks."""

    blocks: ir.Expr  # their number
    finish: Work  # from the number of the block and of the thread to the statement of that thread
    prepare: Work | None = None  # the same, before the barrier
    shared: tuple[ir.Var, ...] = ()  # buffers in shared memory


def elementwise_gpu(program: Program, config: ElementwiseGpuConfig) -> tirx.PrimFunc:
    """Make the kernel: every iteration space has its own range of blocks in one grid."""
    ranges = [_block_range(one) for one in config.ranges]
    shared = [buffer for block_range in ranges for buffer in block_range.shared]

    def body_of(block_index: ir.Expr) -> tirx.Stmt:
        # Each thread chooses its range, since barriers must not be under conditions.
        def phase(works: list[Work | None]) -> tirx.Stmt:
            def run(thread: ir.Expr) -> tirx.Stmt:
                chosen = [
                    (
                        block_range.blocks,
                        lambda number, work=work: work(number, thread) if work else _idle(),
                    )
                    for block_range, work in zip(ranges, works, strict=True)
                ]
                return choose(block_index, chosen)

            return threads("threadIdx.x", THREADS, run)

        finish = phase([block_range.finish for block_range in ranges])
        if not shared:
            return finish
        prepare = phase([block_range.prepare for block_range in ranges])
        return block("tiles", sequence([prepare, finish]), shared)

    total = add(block_range.blocks for block_range in ranges)
    return kernel(program, threads("blockIdx.x", total, body_of))


def _idle() -> tirx.Stmt:
    return sequence([])


def _block_range(config: TransposeConfig | VectorConfig | PointConfig) -> BlockRange:
    if isinstance(config, TransposeConfig):
        return _tiles(config)
    return _vectors(config) if isinstance(config, VectorConfig) else _points(config.space)


def _tiles(config: TransposeConfig) -> BlockRange:
    """Let every block compute a tile."""
    shared = config.declare()
    return BlockRange(
        config.blocks,
        lambda number, thread: store_tiles(config, shared, number, thread),
        lambda number, thread: load_tiles(config, shared, number, thread),
        shared,
    )


def _points(space: IterationSpace) -> BlockRange:
    """Let every thread compute one point."""
    extents = [a.extent for a in space.axes]
    points = product(extents)

    def finish(number: ir.Expr, thread: ir.Expr) -> tirx.Stmt:
        flat = number * THREADS + thread
        return when_inside(flat, points, space.point(coordinates(flat, extents)))

    return BlockRange(ceildiv(points, THREADS), finish)


def when_inside(flat: ir.Expr, points: ir.Expr, body: tirx.Stmt) -> tirx.Stmt:
    """Guard against the last block's surplus threads."""
    size = constant(points)
    return body if size is not None and size % THREADS == 0 else when(flat < points, body)


def _vectors(config: VectorConfig) -> BlockRange:
    """Assign every thread some vectors, neighbouring threads neighbouring ones."""
    each, whole = config.per_thread, config.whole
    count = constant(whole)
    is_full = count is not None and count > 0 and count % (each * THREADS) == 0
    points = config.space.points

    def finish(number: ir.Expr, thread: ir.Expr) -> tirx.Stmt:
        def start(which: ir.Expr) -> ir.Expr:
            return (number * each + which) * THREADS + thread

        main = compute(config, start, None if is_full else whole)
        if constant(config.left) == 0:
            return main
        # The first threads of the first block compute the remainder, one element each.
        flat = whole * config.width + thread
        place = coordinates(flat, config.extents)
        rest = when(tirx.And(number < 1, flat < points), config.space.point(place))
        return sequence([main, rest])

    return BlockRange(ceildiv(points, config.width * each * THREADS), finish)
