"""Operands of a convolution as tensor maps: windows of an image, and the weight by its taps.

    image[n, y, x, c]       one: boxes of 128 bytes of c times a rectangle of pixels, from
                            (n, y * stride + r * dilation - padding, x * .. + s * .. - .., c)
    packed[k, r, s, c]      the other: boxes of 128 bytes of c of one tap times columns k of a tile

A step of K is a tap and a chunk of channels: for tap: for chunk. Pixels of the padding are elements
beyond the sizes, which the Tensor Memory Accelerator makes zeros; so are channels beyond the last
in both operands. A stride is the map's step from pixel to pixel. Rows of a tile are a rectangle of
as many output pixels, so that a window of them is one box: no thread computes an address. Where
results are contiguous along pixels, NCHW, the image is B, and columns of a tile are the rectangle.
Of a grouped convolution, groups are the matrices of a batch: a dimension of both, image[n, y, x, g,
c] and packed[g, k, r, s, c].
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tvm import ir, tirx

from .....core.tir.loops import ceildiv, coordinates, index, simplified
from .....ecg.work import at
from ....gpu.memory.tma import MAX_BOX
from .matrix import TmaOperand

# By a window of pooling, the pixels of a fragment's sixteen rows: a thread has two along the first
# axis, eight rows apart; others are of other lanes.
FRAGMENTS = {(2, 2): (2, 8), (2, 2, 2): (2, 2, 4)}


@dataclass(frozen=True)
class ImageDim:
    """Where a tile's window lies along a dimension of the image."""

    row: int | None  # the axis of pixels that moves along it, by its number
    step: int  # from one pixel of the output to the next
    taps: tuple[int, ...]  # what each tap's axis adds
    start: int  # of the first pixel and tap: minus the padding
    # Whether it is that of a grouped convolution's groups, matrices of the batch.
    is_group: bool = False


@dataclass(frozen=True)
class TmaTaps(TmaOperand):
    """A weight ``[column, tap, channel]`` that TMA copies."""

    chunks: int = 1  # boxes that the channels of a tap take

    def of_rows(self, rows: int) -> TmaTaps | None:
        """Return the operand with so many columns (N) in a tile of B."""
        (own,) = self.maps
        box = (*own.box[:2], rows, *[1] * len(self.batch))
        return replace(self, maps=(replace(own, box=box),), rows=rows)

    def boxes(
        self, batch: dict[ir.Var, ir.Expr], firsts: Sequence[ir.Expr], k: ir.Expr
    ) -> list[tuple[int, int, list[ir.Expr]]]:
        """List the only box of a tile: see :meth:`.matrix.TmaOperand.boxes`."""
        tap, chunk = self._tap_of(k)
        behind = [batch[axis] for axis in self.batch]
        return [(0, 0, [chunk * self.block_k, tap, firsts[0], *behind])]

    def _tap_of(self, k: ir.Expr) -> tuple[ir.Expr, ir.Expr]:
        """Return the tap and the chunk of channels of a step."""
        tap, chunk = coordinates(
            simplified(tirx.floordiv(k, index(self.block_k))), [1, self.chunks]
        )
        return tap, chunk


@dataclass(frozen=True)
class TmaWindow(TmaTaps):
    """An image of which TMA copies the pixels under a tap of a window."""

    dims: tuple[ImageDim, ...] = ()  # of the image behind the channels, the innermost first
    # Extents of the axes of the output's pixels: those of M, which may be symbolic, or of N.
    pixels: tuple[ir.Expr | int, ...] = ()
    taps: tuple[int, ...] = ()  # extents of the window
    # Pixels of a tile along each axis: together its rows, or columns.
    rectangle: tuple[int, ...] = ()
    multiple: int = 1  # what the last of them is a multiple of: pixels that are stored together
    # Where windows are pooled: pixels of sixteen rows, as :data:`FRAGMENTS` has them.
    pooled: tuple[int, ...] = ()

    @property
    def steps(self) -> int:
        """Tiles along K."""
        return math.prod(self.taps) * self.chunks

    @property
    def tiles(self) -> tuple[ir.Expr, ...]:
        """Tiles along each axis of pixels."""
        return tuple(ceildiv(e, size) for e, size in zip(self.pixels, self.rectangle, strict=True))

    @property
    def tile_count(self) -> int:
        """Count the tiles, of symbolic pixels as they are assumed to be."""
        sizes = zip(self.pixels, self.rectangle, strict=True)
        return math.prod(-(-at(index(e)) // size) for e, size in sizes)

    def of_rows(self, rows: int) -> TmaWindow | None:
        """Choose the rectangle of a tile: the fewest tiles, then the fewest pixels of the image."""
        found = [
            one for size in _rectangles(rows, len(self.pixels))
            if (one := replace(self, rows=rows, rectangle=size))._has_box
        ]  # fmt: skip
        best = min(found, key=lambda one: (one.tile_count, one._read), default=None)
        if best is None:
            return None
        (own,) = best.maps
        box = tuple(1 if d.row is None else best.rectangle[d.row] for d in best.dims)
        return replace(best, maps=(replace(own, box=(own.box[0], *box)),))

    @property
    def _has_box(self) -> bool:
        is_whole = self.rectangle[-1] % self.multiple == 0
        if self.pooled:
            outer, *inner = self.rectangle[-len(self.pooled) :]
            is_whole &= outer % self.pooled[0] == 0 and (*inner,) == self.pooled[1:]
        return is_whole and all(self._span(d) <= MAX_BOX for d in self.dims)

    @property
    def _read(self) -> int:
        """Pixels of the image that a tile's windows cover."""
        reach = (sum(abs(s) * (e - 1) for s, e in zip(d.taps, self.taps, strict=True))
                 for d in self.dims)  # fmt: skip
        return math.prod(self._span(d) + more for d, more in zip(self.dims, reach, strict=True))

    def _span(self, dim: ImageDim) -> int:
        return 1 if dim.row is None else (self.rectangle[dim.row] - 1) * dim.step + 1

    def boxes(
        self, batch: dict[ir.Var, ir.Expr], firsts: Sequence[ir.Expr], k: ir.Expr
    ) -> list[tuple[int, int, list[ir.Expr]]]:
        """List the only box of a tile: see :meth:`.matrix.TmaOperand.boxes`."""
        tap, chunk = self._tap_of(k)
        taps = coordinates(tap, self.taps)
        tiles = coordinates(simplified(tirx.floordiv(firsts[0], index(self.rows))), self.tiles)
        places: list[ir.Expr] = [chunk * self.block_k]
        for dim in self.dims:
            place: ir.Expr = batch[self.batch[0]] if dim.is_group else index(dim.start)
            if dim.row is not None:
                place = place + tiles[dim.row] * (self.rectangle[dim.row] * dim.step)
            for own, step in zip(taps, dim.taps, strict=True):
                place = place + own * step
            places.append(place)
        return [(0, 0, places)]

    def pixel(self, tile: ir.Expr, place: ir.Expr, clamped: int = 0) -> list[ir.Expr]:
        """Return the coordinates of the pixel at a position of a tile.

        Clamped to a vector of so many pixels along the last axis, the nearest that exists.
        """
        tiles, inside = coordinates(tile, self.tiles), coordinates(place, self.rectangle)
        found = [t * s + i for t, s, i in zip(tiles, self.rectangle, inside, strict=True)]
        if not clamped:
            return found
        last = [*[1] * (len(found) - 1), clamped]
        sizes = zip(found, self.pixels, last, strict=True)
        return [tirx.min(x, index(extent) - size) for x, extent, size in sizes]

    def bounds(self, tile: ir.Expr, place: ir.Expr) -> list[ir.Expr]:
        """List when that pixel exists, where the last rectangles reach beyond an edge."""
        sizes = zip(self.pixel(tile, place), self.pixels, self.rectangle, strict=True)
        return [
            x < index(extent)
            for x, extent, size in sizes
            if size > 1 and (not isinstance(extent, int) or extent % size)
        ]


def _rectangles(rows: int, rank: int) -> Iterator[tuple[int, ...]]:
    """Enumerate extents of a product: powers of two, but for the last."""
    if rank == 1:
        yield (rows,)
        return
    for shift in range(rows.bit_length()):
        if rows % (1 << shift) == 0:
            yield from ((1 << shift, *rest) for rest in _rectangles(rows >> shift, rank - 1))
