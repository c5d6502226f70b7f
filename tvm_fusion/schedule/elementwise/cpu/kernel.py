"""The elementwise kernel on a CPU: one parallel loop over rows or parts of rows.

parallel for task (of all iteration spaces, one after the other):
    rows, or `chunk` elements of a long row, or a band of square tiles of a transposed load:
        for vectors along the last axis: for each output: load, compute, store
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from tvm import ir, tirx

from ....core.tir.loops import (
    Body,
    add,
    block,
    ceildiv,
    choose,
    constant,
    coordinates,
    index,
    kernel,
    loop,
    over,
    product,
    sequence,
    vectorized,
)
from ....program.program import Program
from ....program.stage import Stage
from ...cpu.schedule import PARALLEL_TASKS, PARALLEL_WORK, VectorRegisters
from ...cpu.vector_loops import VECTORS, at_vector, by_vectors, vectors
from ...index.design_space import Kernels
from ...math.vector_math import vector_math
from ..group_maps import iteration_spaces, with_offsets
from ..iteration_space import IterationSpace, Store
from .squares import Squares, squares_of, with_block_axes

CHUNK = 4096  # elements of a long row that one task computes
TILE = 16  # rows and columns of a transposed tile: a cache line of four-byte elements each way
LANES = (1, 2, 4)  # vectors of the widest, for the design space
CHUNKS, TILES = (1024, CHUNK, 16384), (8, TILE, 32)


@dataclass(frozen=True, eq=False)
class ElementwiseCpuConfig:
    """Configuration of an elementwise kernel: decided by the claim, consumed by its emission."""

    stages: tuple[Stage, ...]  # maps, those that are internal inlined but for ``kept``
    kept: frozenset[ir.Var]  # internal maps that live in registers
    lanes: int  # elements of the widest vectors
    has_blocks: bool  # whether channels are blocks in memory: vectors run through several blocks
    chunk: int  # elements of a long row that one task computes
    tile: int  # rows and columns of a tile of a transposed load
    # Whether the work is worth waking other threads; ``None``: the emission counts it.
    is_parallel: bool | None = None

    @classmethod
    def of(
        cls,
        stages: Sequence[Stage],
        registers: VectorRegisters,
        kept: frozenset[ir.Var] = frozenset(),
        has_blocks: bool = False,
    ) -> ElementwiseCpuConfig:
        """Configure maps for the registers of a CPU."""
        return cls(tuple(stages), kept, VECTORS * registers.lanes, has_blocks, CHUNK, TILE)


KERNELS = Kernels({ElementwiseCpuConfig: ("maps", ("lanes", "chunk", "tile", "is_parallel"))})


def configs(chosen: ElementwiseCpuConfig) -> Iterator[ElementwiseCpuConfig]:
    """Enumerate vectors and tasks of maps, each once, the default first."""
    spaces = iteration_spaces(chosen.stages, chosen.kept)
    chosen = replace(chosen, is_parallel=_is_parallel(spaces))
    yield chosen
    tiled = [space.transposed_axis() is not None for space in spaces if space.axes]
    rows = [s.axes[-1].extent for s in spaces if s.axes and s.transposed_axis() is None]
    has_chunks = any((constant(extent) or CHUNKS[-1]) > CHUNKS[0] for extent in rows)
    choices = itertools.product(
        [chosen.lanes * n // VECTORS for n in LANES],
        CHUNKS if has_chunks else (chosen.chunk,),
        TILES if any(tiled) else (chosen.tile,),
        (False, True),
    )
    for lanes, chunk, tile, is_parallel in choices:
        config = replace(chosen, lanes=lanes, chunk=chunk, tile=tile, is_parallel=is_parallel)
        if KERNELS.plain(config) != KERNELS.plain(chosen):
            yield config


def elementwise_cpu(program: Program, config: ElementwiseCpuConfig) -> tirx.PrimFunc:
    """Make the kernel of a program of maps."""
    return kernel(program, maps_cpu(config))


def maps_cpu(config: ElementwiseCpuConfig) -> tirx.Stmt:
    """Write maps: the tasks of every iteration space under one parallel loop."""
    spaces = [_with_vector_math(s) for s in iteration_spaces(config.stages, config.kept)]
    if config.has_blocks:
        spaces = [with_block_axes(with_offsets(space), _side(config)) for space in spaces]
    pieces = [piece for space in spaces for piece in _tasks(space, config)]
    is_parallel = _is_parallel(spaces) if config.is_parallel is None else config.is_parallel
    kind = tirx.ForKind.PARALLEL if is_parallel else tirx.ForKind.SERIAL
    total = add(count for count, _ in pieces)
    return loop("task", total, lambda task: choose(task, pieces), kind)


def _is_parallel(spaces: Sequence[IterationSpace]) -> bool:
    return sum(constant(s.points) or PARALLEL_WORK for s in spaces) >= PARALLEL_WORK


def _with_vector_math(space: IterationSpace) -> IterationSpace:
    stores = [Store(s.buffer, s.indices, vector_math(s.value)) for s in space.stores]
    return replace(space, stores=tuple(stores))


def _tasks(space: IterationSpace, config: ElementwiseCpuConfig) -> list[tuple[ir.Expr, Body]]:
    """Divide an iteration space into tasks: pairs of their number and the body of one."""
    lanes, longest = config.lanes, config.chunk
    if not space.axes:
        return [(index(1), lambda task: space.point([]))]
    squares = squares_of(space, _side(config))
    tiled = space.transposed_axis() if squares is None else squares.tiled
    if tiled is not None:
        return [_tiles(space, tiled, config, squares)]
    *outer, row = space.axes
    extents = [a.extent for a in outer]
    many = outermost(extents)
    size = constant(row.extent)
    if not outer and size is not None and size <= longest:
        body = partial(_vector, space, [])
        return [
            (index(count), partial(at_vector, body, start, width))
            for start, width, count in vectors(size, lanes)
        ]
    if many is not None or (size is not None and size <= longest):
        shared, inner = extents[:many], outer[many:] if many is not None else []

        def rows(task: ir.Expr) -> tirx.Stmt:
            place = coordinates(task, shared)
            return over(
                inner, lambda rest: _row(space, [*place, *rest], index(0), row.extent, lanes)
            )

        return [(product(shared), rows)]
    chunks = ceildiv(row.extent, longest)

    def chunk(task: ir.Expr) -> tirx.Stmt:
        start = tirx.floormod(task, chunks) * longest
        length = _shorter(longest, row.extent, start)
        place = coordinates(tirx.floordiv(task, chunks), extents)
        return _row(space, place, start, length, lanes)

    return [(product([*extents, chunks]), chunk)]


def outermost(extents: Sequence[ir.Expr | int]) -> int | None:
    """Return how many outer axes make enough tasks; ``None`` if all of them do not.

    Fewer axes need fewer divisions to recover a position.
    """
    tasks = 1
    for number, extent in enumerate(extents, start=1):
        tasks *= constant(extent) or PARALLEL_TASKS
        if tasks >= PARALLEL_TASKS:
            return number
    return None


def _row(
    space: IterationSpace, place: list[ir.Expr], start: ir.Expr, length: ir.Expr | int, lanes: int
) -> tirx.Stmt:
    """Compute a row by vectors; the remainder of a symbolic length by elements."""
    size = constant(length)
    if size is not None:
        return by_vectors(size, lanes, lambda n, w: _vector(space, place, start + n, w))
    lanes //= VECTORS
    whole = tirx.floordiv(index(length), index(lanes))
    rest = tirx.floormod(index(length), index(lanes))
    return sequence(
        [
            loop("vector", whole, lambda n: _vector(space, place, start + n * lanes, lanes)),
            loop("rest", rest, lambda n: space.point([*place, start + whole * lanes + n])),
        ]
    )


def _vector(space: IterationSpace, place: list[ir.Expr], first: ir.Expr, width: int) -> tirx.Stmt:
    """Compute contiguous elements, one output after the other: fewer registers are live."""
    files = space.files(width)

    def store(one: Store, lane: ir.Expr) -> tirx.Stmt:
        places = dict(zip(space.variables, [*place, first + lane], strict=True))
        return one.at(places, files, lane)

    body = sequence([vectorized(width, partial(store, one)) for one in space.stores])
    return block("vector", body, list(files.values())) if files else body


def _side(config: ElementwiseCpuConfig) -> int:
    """Rows and columns of a square of vectors."""
    return min(config.lanes // VECTORS, config.tile)


def _tiles(
    space: IterationSpace, tiled: int, config: ElementwiseCpuConfig, squares: Squares | None
) -> tuple[ir.Expr, Body]:
    """Divide a transposed load into bands of tiles, whose lines stay in the L1 cache."""
    side = config.tile
    across, last = space.axes[tiled], space.axes[-1]
    rest = [a for n, a in enumerate(space.axes[:-1]) if n != tiled]
    bands = ceildiv(across.extent, side)
    extents = [*(a.extent for a in rest), bands]

    size = constant(last.extent)

    def task_body(task: ir.Expr) -> tirx.Stmt:
        *place, band = coordinates(task, extents)
        top = band * side
        if squares is not None and size is not None:
            where = [*place[:tiled], top, *place[tiled:], index(0)]
            first = dict(zip(space.variables, where, strict=True))
            return squares.band(
                first, index(_shorter(side, across.extent, top)), size, config.lanes
            )

        def tile(left: ir.Expr, width: int) -> tirx.Stmt:
            def line(row: ir.Expr) -> tirx.Stmt:
                where = [*place[:tiled], top + row, *place[tiled:]]
                if size is not None:
                    return _vector(space, where, left, width)
                columns = _shorter(width, last.extent, left)
                return loop("column", columns, lambda column: space.point([*where, left + column]))

            return loop("row", _shorter(side, across.extent, top), line)

        if size is None:
            transpose_config = ceildiv(last.extent, side)
            return loop("tile", transpose_config, lambda n: tile(n * side, side))
        return by_vectors(size, side, tile, "tile")

    return product(extents), task_body


def _shorter(size: int, extent: ir.Expr | int, start: ir.Expr) -> ir.Expr | int:
    """Return the length of a part of an axis: the last one may be shorter."""
    whole = constant(extent)
    if whole is not None and whole % size == 0:
        return size
    return tirx.min(index(size), index(extent) - start)
