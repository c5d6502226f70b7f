"""Winograd convolution on a CPU: products of transformed tiles, by register tiles.

  tasks in parallel: (image, chunk of tiles of channels, tiles of m x m pixels)
    V[f][c][tiles] = B^T d B                                                              (image)
    for tile of channels:
      for f of the (m + 2)^2 places:  for register tile of tiles:
        acc[tiles][vectors] += broadcast V[f][c][tile] * U[f][c][vectors]           over c
        P[f][tiles][vectors] = acc
      for vector, tile:  results of A^T P A                                             (results)

The weight U = G w G^T is transformed at compile time (transforms.py).
"""

from collections.abc import Callable

from tvm import ir, tirx

from ...._tvm.ir.buffer import declare
from ....core.tir.expressions import load
from ....core.tir.loops import (
    block,
    ceildiv,
    constant,
    coordinates,
    index,
    local,
    loop,
    product,
    sequence,
)
from ....program.program import Program
from ....program.stage import Axis
from ...contraction.problem.functions.packing import packed_kernel
from ...cpu.register_tile import accumulate, clear, in_vectors
from ...index.index_ranges import Ranges
from ..problem.problem import ConvProblem
from ..problem.task_loop import fresh, task_loop
from .choice import WinogradWindow, winograd_window
from .config import WinogradConfig
from .phases import WinogradImage, WinogradResults
from .transforms import WinogradWeight

TileBody = Callable[[ir.Expr, ir.Expr, ir.Expr], tirx.Stmt]  # number in the task, row, column


def winograd_cpu(
    program: Program, problem: ConvProblem, config: WinogradConfig
) -> tuple[tirx.PrimFunc, dict[int, tirx.PrimFunc]]:
    """Make the kernel, and the function that packs the weight, by its position among the inputs."""
    window = winograd_window(problem, config.lanes)
    if isinstance(window, str):
        raise RuntimeError(f"a Winograd convolution was claimed although {window}")
    loops = WinogradLoops(problem, window, config)
    return packed_kernel(program, loops.tasks(), [loops.weight])


class WinogradLoops:
    """The loops of a Winograd convolution, from tasks inwards."""

    def __init__(
        self, problem: ConvProblem, window: WinogradWindow, config: WinogradConfig
    ) -> None:
        self._problem, self._config = problem, config
        self._ranges = Ranges()
        self._nr = config.vectors * config.lanes
        self.weight = WinogradWeight(problem, window.axes, config.m, self._nr)
        self._image = WinogradImage(problem, window, config, self._ranges)
        self._grid = [-(-(constant(a.extent) or 1) // config.m) for a in (problem.y, problem.x)]
        # One row more: places whose distance is a power of two would evict each other.
        shape = [config.places, config.tiles + 1, self._nr]
        self._products = declare([index(d) for d in shape], "float32", "products", "local")
        self._results = WinogradResults(problem, config, self._products, self._ranges)

    def tasks(self) -> tirx.Stmt:
        """Write the parallel loop."""
        problem, config = self._problem, self._config
        size = constant(problem.k.extent) or 1
        total, tiles = self._grid[0] * self._grid[1], -(-size // self._nr)
        batch = fresh(problem.batch)
        chunk = Axis(tirx.Var("chunk", "int64"), ceildiv(tiles, config.chunk))
        part = Axis(tirx.Var("part", "int64"), ceildiv(total, config.tiles))

        def task() -> tirx.Stmt:
            place = {a.var: b.var for a, b in zip(problem.batch, batch, strict=True)}
            over = lambda body: self._tiles(part.var, total, body)  # noqa: E731
            count: ir.Expr = index(config.chunk)
            if tiles % config.chunk:
                count = tirx.min(count, tiles - chunk.var * config.chunk)

            def tile(n: ir.Expr) -> tirx.Stmt:
                self._ranges.bind(n, config.chunk)
                number = self._ranges.index(chunk.var * config.chunk + n)
                return self._channels(place, number, tiles, over)

            body = loop("k_tile", count, tile)
            stmts = [self._image.fill(place, over), body]
            return block("task", sequence(stmts), [self._image.buffer, self._products])

        c = 1 if problem.c is None else problem.c.extent
        products = product([config.tiles * config.places, config.chunk * self._nr, c])
        return task_loop([*batch, chunk, part], [products], self._ranges, task)

    def _tiles(self, part: ir.Expr, total: int, body: TileBody) -> tirx.Stmt:
        """Write a loop over the tiles of a task."""
        config, ranges = self._config, self._ranges
        count: ir.Expr = index(config.tiles)
        if total % config.tiles:
            count = tirx.min(count, total - part * config.tiles)

        def tile(n: ir.Expr) -> tirx.Stmt:
            ranges.bind(n, config.tiles)
            y, x = tirx.Var("tile_y", "int64"), tirx.Var("tile_x", "int64")
            for var, extent in zip((y, x), self._grid, strict=True):
                ranges.bind(var, extent)
            places = coordinates(part * config.tiles + n, self._grid)
            binds = [tirx.Bind(v, ranges.index(p)) for v, p in zip((y, x), places, strict=True)]
            return sequence([*binds, body(n, y, x)])

        return loop("tile", count, tile)

    def _channels(
        self, place: dict, number: ir.Expr, tiles: int, over: Callable[[TileBody], tirx.Stmt]
    ) -> tirx.Stmt:
        """Write a tile of channels; the last one may be narrower."""
        problem, config = self._problem, self._config
        size = constant(problem.k.extent) or 1
        full = min(problem.channels, size) // self._nr

        def write(number: ir.Expr, vectors: int, is_last: bool) -> tirx.Stmt:
            results = self._results.write(place, number * self._nr, vectors, is_last, over)
            return sequence([self._all_products(number, vectors), results])

        if full == tiles:
            return write(number, config.vectors, False)
        vectors = -(-(size - full * self._nr) // config.lanes)
        rest = write(index(full), vectors, True)
        if not full:
            return rest
        return tirx.IfThenElse(number < full, write(number, config.vectors, False), rest)

    def _all_products(self, number: ir.Expr, vectors: int) -> tirx.Stmt:
        """Write the products of a tile of channels, at all places."""
        config = self._config
        full, rest = divmod(config.tiles, config.height)

        def at(place: ir.Expr) -> tirx.Stmt:
            tile = lambda n: self._tile(number, place, n * config.height, config.height, vectors)  # noqa: E731
            stmts = [loop("register_tile", full, tile)]
            if rest:
                stmts.append(self._tile(number, place, index(full * config.height), rest, vectors))
            return sequence(stmts)

        return loop("f", config.places, at)

    def _tile(
        self, number: ir.Expr, place: ir.Expr, first: ir.Expr, height: int, vectors: int
    ) -> tirx.Stmt:
        """Write a register tile."""
        problem = self._problem
        size = problem.block
        blocks, rest = divmod((constant(problem.c.extent) if problem.c else 1) or 1, size)
        acc = local("acc", [height, vectors * self._config.lanes], "float32")

        def terms(n: ir.Expr, lanes: int) -> tirx.Stmt:
            return accumulate(
                acc,
                lanes,
                lambda i, c: self._image.at(place, n, first + i, c),
                lambda c, lane: load(self.weight.buffer, [number, place, n * size + c, lane]),
            )

        def store(i: ir.Expr) -> tirx.Stmt:
            def one(lane: ir.Expr) -> tirx.Stmt:
                return tirx.BufferStore(
                    self._products, load(acc, [i, lane]), [place, first + i, lane]
                )

            return in_vectors(vectors * self._config.lanes, one)

        stmts = [clear(acc, tirx.const(0, "float32"))]
        if blocks:
            stmts.append(loop("block", blocks, lambda n: terms(n, size)))
        if rest:
            stmts.append(terms(index(blocks), rest))
        stmts.append(loop("i", height, store, tirx.ForKind.UNROLLED))
        return block("tile", sequence(stmts), [acc])
