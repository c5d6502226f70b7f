"""Direct convolution on a CPU: register tiles of pixels by vectors of output channels.

  tasks in parallel: (image, band of rows of pixels, part of the rows, chunk of tiles of channels)
    copy lines of the image with their padding, unless they are read in place       (image_copy)
    for tile of channels:                                     its weight stays in a near cache
      for tile of height * width pixels:                                                  (tile)
      store rows of results whose channels are strided                              (row_stores)

Few rows are cut along their length as well. Parts are as long as each other: the last one begins
within the one before it where the length is no multiple of theirs, and computes some pixels again.
The weight is packed at compile time in the order of these loops (weight.py).
"""

from tvm import ir, tirx

from ....core.tir.loops import block, ceildiv, constant, index, product, sequence
from ....program.program import Program
from ....program.stage import Axis
from ...contraction.cpu.blocking import GRAIN
from ...contraction.problem.functions.packing import packed_kernel
from ...index.index_ranges import Ranges
from ..problem.image_reader import ImageReader
from ..problem.problem import ConvProblem
from ..problem.task_loop import fresh, task_loop
from .config import ConvConfig
from .image_copy import image_reader
from .row_stores import RowStores
from .tile import DenseTile, PixelTile
from .weight import KernelWeight, PackedWeight


def dense_cpu(
    program: Program, problem: ConvProblem, config: ConvConfig
) -> tuple[tirx.PrimFunc, dict[int, tirx.PrimFunc]]:
    """Make the kernel, and the function that packs the weight, by its position among the inputs."""
    ranges = Ranges()
    columns = config.columns(constant(problem.x.extent) or 1)
    nr = config.vectors * config.lanes
    weight = PackedWeight(problem, nr, config.band * -(-columns // config.width))
    image = image_reader(problem, (config.band * config.height, columns), config.chunk * nr)
    tile = DenseTile(problem, config, image, weight, ranges)
    loops = DenseLoops(problem, config, image, weight, tile, ranges)
    return packed_kernel(program, loops.tasks(), [weight])


class DenseLoops:
    """The loops of a dense convolution, from tasks inwards.

    Parameters
    ----------
    image, weight, tile
        How tiles read the image and the weight, and the tiles.
    """

    def __init__(
        self,
        problem: ConvProblem,
        config: ConvConfig,
        image: ImageReader,
        weight: KernelWeight,
        tile: PixelTile,
        ranges: Ranges,
    ) -> None:
        self._problem, self._config = problem, config
        self._nr = config.vectors * config.lanes
        self._image, self._weight, self._tile, self._ranges = image, weight, tile, ranges
        self._sizes = {a.var: constant(a.extent) or 1 for a in (problem.y, problem.x, problem.k)}
        self._columns = config.columns(self._sizes[problem.x.var])

    def tasks(self) -> tirx.Stmt:
        """Write the parallel loop."""
        problem, config = self._problem, self._config
        rows = config.band * config.height
        tiles = -(-self._sizes[problem.k.var] // self._nr)
        batch = fresh(problem.batch)
        chunk = Axis(tirx.Var("chunk", "int64"), ceildiv(tiles, config.chunk))
        band = Axis(tirx.Var("band", "int64"), ceildiv(problem.y.extent, rows))
        part = Axis(tirx.Var("part", "int64"), ceildiv(problem.x.extent, self._columns))

        def task() -> tirx.Stmt:
            place = {a.var: b.var for a, b in zip(problem.batch, batch, strict=True)}
            first_k: ir.Expr = chunk.var * (config.chunk * self._nr)
            first_x = self._first_column(part)
            place |= {problem.y.var: band.var * rows, problem.k.var: first_k}
            place[problem.x.var] = index(0) if first_x is None else first_x.var
            filled = self._image.fill(place, self._ranges)
            body = self._chunk(place, chunk.var, band.var, tiles)
            body = sequence([*self._tile.begin_task(), body, *self._tile.end_task()])
            stmts = [body] if filled is None else [filled, body]
            buffers = [*self._image.buffers(), *self._weight.buffers(), *self._tile.task_buffers]
            stmt = block("task", sequence(stmts), buffers)
            return stmt if first_x is None else sequence([first_x, stmt])

        terms = product([self._weight.band.most, *(a.extent for a in problem.window)])
        products = [rows * self._columns * config.chunk * self._nr, terms]
        axes = [*batch, chunk, band, *([part] if constant(part.extent) != 1 else [])]
        loops = task_loop(axes, products, self._ranges, task, GRAIN)
        return loops if problem.words is None else problem.words.dot.around(loops)

    def _first_column(self, part: Axis) -> tirx.Bind | None:
        """Bind the first column of a part of the rows; ``None`` where tasks take whole rows."""
        last = self._sizes[self._problem.x.var] - self._columns
        if not last:
            return None
        first = tirx.Var("first_x", "int64")
        self._ranges.bind(first, last + 1)
        return tirx.Bind(first, tirx.min(part.var * self._columns, index(last)))

    def _chunk(self, place: dict, chunk: ir.Expr, band: ir.Expr, tiles: int) -> tirx.Stmt:
        """Write the tiles of channels of a task.

        The last one may be narrower. Those of a concatenation go on behind the channels of the sum.
        """
        problem, config = self._problem, self._config
        size = self._sizes[problem.k.var]
        full = min(problem.channels, size) // self._nr
        count: ir.Expr = index(config.chunk)
        if tiles % config.chunk:
            count = tirx.min(count, tiles - chunk * config.chunk)

        def tile(n: ir.Expr) -> tirx.Stmt:
            number = self._ranges.index(chunk * config.chunk + n)
            stmt = None
            for last in reversed(range(full, tiles)):
                vectors = min(config.vectors, -(-(size - last * self._nr) // config.lanes))
                own = self._band(place, index(last), band, vectors, True)
                stmt = own if stmt is None else tirx.IfThenElse(number < last + 1, own, stmt)
            if full:
                whole = self._band(place, number, band, config.vectors, False)
                stmt = whole if stmt is None else tirx.IfThenElse(number < full, whole, stmt)
            begin = self._weight.begin_tile(number)
            return stmt if begin is None else sequence([begin, stmt])

        return self._tile.loop("k_tile", count, config.chunk, tile)

    def _band(
        self, place: dict, number: ir.Expr, band: ir.Expr, vectors: int, is_last: bool
    ) -> tirx.Stmt:
        """Write the tiles of pixels of a task; the last ones may be lower and narrower."""
        problem, config = self._problem, self._config
        size = self._sizes[problem.y.var]
        full, rest = divmod(size, config.height)
        rows = full + bool(rest)
        count: ir.Expr = index(config.band)
        if rows % config.band:
            count = tirx.min(count, rows - band * config.band)

        def row(n: ir.Expr) -> tirx.Stmt:
            if not rest:
                return self._row(place, number, n, config.height, vectors, is_last)
            last = self._row(place, number, n, rest, vectors, is_last)
            if not full:
                return last
            whole = self._row(place, number, n, config.height, vectors, is_last)
            return tirx.IfThenElse(band * config.band + n < full, whole, last)

        return self._tile.loop("y_tile", count, config.band, row)

    def _row(
        self, place: dict, number: ir.Expr, n: ir.Expr, height: int, vectors: int, is_last: bool
    ) -> tirx.Stmt:
        """Write the tiles of a row of them, the ``n``-th of the task."""
        problem, config = self._problem, self._config
        full, rest = divmod(self._columns, config.width)
        count = full + bool(rest)
        shape = height, self._columns, vectors * config.lanes
        rows = RowStores(problem, config.lanes, shape, place[problem.x.var])

        def tile(column: ir.Expr, width: int) -> tirx.Stmt:
            y, x = n * config.height, column * config.width
            tile_index = n * count + column
            shape = height, width
            return self._tile.write(
                place, number, y, x, shape, vectors, is_last, tile_index, count, rows
            )

        stmts = []
        if full:
            stmts.append(
                self._tile.loop("x_tile", full, full, lambda column: tile(column, config.width))
            )
        if rest:
            stmts.append(tile(index(full), rest))
        y = n * config.height
        stored = self._tile.store_rows(rows, place, number, y, vectors, is_last)
        return rows.around(sequence(stmts), stored)
