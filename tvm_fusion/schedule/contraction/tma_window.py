"""Operands of a convolution as tensor maps: windows of an image, and the weight by its taps.

    image[n, y, x, c]       one: boxes of 128 bytes of c times a rectangle of pixels, from
                            (n, y * stride + r * dilation - padding, x * .. + s * .. - .., c)
    packed[k, r, s, c]      the other: boxes of 128 bytes of c of one tap times columns k of a tile

A step of K is a tap and a chunk of channels: for tap: for chunk. Pixels of the padding are elements
beyond the sizes, which the Tensor Memory Accelerator makes zeros; so are channels beyond the last
in both operands. A stride is the map's step from pixel to pixel. Rows of a tile are a rectangle of
as many output pixels, so that a window of them is one box: no thread computes an address. Where
results are contiguous along pixels, NCHW, the image is B, and columns of a tile are the rectangle.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tvm import DataType, ir, sym, tirx

from ...core.loops import constant, coordinates, index, product, simplified, substitute
from ...program.stage import Axis
from ..address import known_step, offset, stride
from ..gpu.tma import ALIGNMENT, MAX_BOX, MAX_RANK, MAX_STEP, ROW_BYTES, TensorMap
from .gemm_view import GemmView
from .tile_gemm_config import is_plain, unguarded
from .tma_operand import TmaOperand

SECTOR = 16  # elements of a half type


@dataclass(frozen=True)
class ImageDim:
    """Where a tile's window lies along a dimension of the image.

    Attributes
    ----------
    row : int, optional
        The axis of pixels that moves along it, by its number.
    step : int
        From one pixel of the output to the next.
    taps : tuple of int
        What each tap's axis adds.
    start : int
        Of the first pixel and tap: minus the padding.
    """

    row: int | None
    step: int
    taps: tuple[int, ...]
    start: int


@dataclass(frozen=True)
class TmaTaps(TmaOperand):
    """A weight ``[column, tap, channel]`` that TMA copies.

    Attributes
    ----------
    chunks : int
        Boxes that the channels of a tap take.
    """

    chunks: int = 1

    def of_rows(self, rows: int) -> TmaTaps | None:
        """Change the columns of a tile."""
        (own,) = self.maps
        box = (*own.box[:-1], rows)
        return replace(self, maps=(replace(own, box=box),), rows=rows)

    def boxes(
        self, batch: dict[ir.Var, ir.Expr], firsts: Sequence[ir.Expr], k: ir.Expr
    ) -> list[tuple[int, int, list[ir.Expr]]]:
        """List the only box of a tile: see :meth:`.tma_operand.TmaOperand.boxes`."""
        tap, chunk = self._tap_of(k)
        return [(0, 0, [chunk * self.block_k, tap, firsts[0]])]

    def _tap_of(self, k: ir.Expr) -> tuple[ir.Expr, ir.Expr]:
        """Give the tap and the chunk of channels of a step."""
        tap, chunk = coordinates(
            simplified(tirx.floordiv(k, index(self.block_k))), [1, self.chunks]
        )
        return tap, chunk


@dataclass(frozen=True)
class TmaWindow(TmaTaps):
    """An image of which TMA copies the pixels under a tap of a window.

    Attributes
    ----------
    dims : tuple of ImageDim
        Of the image behind the channels, the innermost first.
    pixels : tuple of int
        Extents of the axes of the output's pixels: those of M, or of N.
    taps : tuple of int
        Extents of the window.
    rectangle : tuple of int
        Pixels of a tile along each axis: together its rows, or columns.
    multiple : int
        What the last of them is a multiple of: pixels that are stored together.
    """

    dims: tuple[ImageDim, ...] = ()
    pixels: tuple[int, ...] = ()
    taps: tuple[int, ...] = ()
    rectangle: tuple[int, ...] = ()
    multiple: int = 1

    @property
    def steps(self) -> int:
        """Tiles along K."""
        return math.prod(self.taps) * self.chunks

    @property
    def tiles(self) -> tuple[int, ...]:
        """Tiles along each axis of pixels."""
        return tuple(-(-e // size) for e, size in zip(self.pixels, self.rectangle, strict=True))

    def of_rows(self, rows: int) -> TmaWindow | None:
        """Choose the rectangle of a tile: the fewest tiles, then the fewest pixels of the image."""
        found = [
            one for size in _rectangles(rows, len(self.pixels))
            if (one := replace(self, rows=rows, rectangle=size))._has_box
        ]  # fmt: skip
        best = min(found, key=lambda one: (math.prod(one.tiles), one._read), default=None)
        if best is None:
            return None
        (own,) = best.maps
        box = tuple(1 if d.row is None else best.rectangle[d.row] for d in best.dims)
        return replace(best, maps=(replace(own, box=(own.box[0], *box)),))

    @property
    def _has_box(self) -> bool:
        is_whole = self.rectangle[-1] % self.multiple == 0
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
        """List the only box of a tile: see :meth:`.tma_operand.TmaOperand.boxes`."""
        tap, chunk = self._tap_of(k)
        taps = coordinates(tap, self.taps)
        tiles = coordinates(simplified(tirx.floordiv(firsts[0], index(self.rows))), self.tiles)
        places: list[ir.Expr] = [chunk * self.block_k]
        for dim in self.dims:
            place: ir.Expr = index(dim.start)
            if dim.row is not None:
                place = place + tiles[dim.row] * (self.rectangle[dim.row] * dim.step)
            for at, step in zip(taps, dim.taps, strict=True):
                place = place + at * step
            places.append(place)
        return [(0, 0, places)]

    def pixel(self, tile: ir.Expr, place: ir.Expr, clamped: int = 0) -> list[ir.Expr]:
        """Give where the pixel at a place of a tile lies along each axis.

        Clamped to a vector of so many pixels along the last axis, the nearest that exists.
        """
        tiles, inside = coordinates(tile, self.tiles), coordinates(place, self.rectangle)
        found = [t * s + i for t, s, i in zip(tiles, self.rectangle, inside, strict=True)]
        if not clamped:
            return found
        last = [*[1] * (len(found) - 1), clamped]
        sizes = zip(found, self.pixels, last, strict=True)
        return [tirx.min(x, index(extent - size)) for x, extent, size in sizes]

    def bounds(self, tile: ir.Expr, place: ir.Expr) -> list[ir.Expr]:
        """List when that pixel exists, where the last rectangles reach beyond an edge."""
        sizes = zip(self.pixel(tile, place), self.pixels, self.rectangle, strict=True)
        return [x < index(extent) for x, extent, size in sizes if extent % size]


def _rectangles(rows: int, rank: int) -> Iterator[tuple[int, ...]]:
    """Enumerate extents of a product: powers of two, but for the last."""
    if rank == 1:
        yield (rows,)
        return
    for shift in range(rows.bit_length()):
        if rows % (1 << shift) == 0:
            yield from ((1 << shift, *rest) for rest in _rectangles(rows >> shift, rank - 1))


def tma_window(view: GemmView, block_k: int) -> tuple[TmaTaps, TmaTaps] | None:
    """View one operand as an image, the other as its weight, of tiles of no rows yet.

    Parameters
    ----------
    view : GemmView
        With the channels as last axis of K.
    block_k : int
        Terms of a tile.

    Returns
    -------
    (TmaTaps, TmaTaps) or None
        A and B, one of which is a :class:`TmaWindow`; ``None`` if they are no such operands.
    """
    if view.batch:
        return None
    sides = (view.a, view.m_axes), (view.b, view.n_axes)
    for number in range(2):
        image = _image(*sides[number], view.k_axes, block_k)
        weight = _weight(*sides[1 - number], view.k_axes, block_k)
        if image is None or weight is None:
            continue
        if number == 0:
            return image, weight
        # Stores of a channel's pixels are whole sectors of 32 bytes.
        least = min(SECTOR, 1 << (image.pixels[-1] - 1).bit_length())
        return weight, replace(image, multiple=least)
    return None


def _image(
    operand: ir.Expr, pixels: Sequence[Axis], k_axes: Sequence[Axis], block_k: int
) -> TmaWindow | None:
    """View an operand as an image under a window; ``None`` if it is none."""
    image, guard = unguarded(operand)
    if not is_plain(image):
        return None
    *taps, channels = k_axes
    extents = [constant(a.extent) for a in (*pixels, *k_axes)]
    shape = [constant(d) for d in image.source.ty.shape]
    if None in (*extents, *shape) or not 1 < len(shape) <= MAX_RANK:
        return None
    sizes = [int(d) for d in shape if d is not None]
    item_bytes = DataType(str(image.ty.dtype)).itemsize
    strides = [math.prod(sizes[i:]) for i in range(1, len(sizes))]
    if any(s * item_bytes % ALIGNMENT for s in strides) or constant(channels.extent) != sizes[-1]:
        return None
    last = _image_dim(image.indices[-1], pixels, k_axes)
    found = [_image_dim(i, pixels, k_axes) for i in image.indices[:-1]]
    dims = [d for d in reversed(found) if d is not None]
    rows = sorted(d.row for d in dims if d.row is not None)
    only_channels = ImageDim(None, 1, (*[0] * len(taps), 1), 0)
    if last != only_channels or len(dims) != len(found) or rows != list(range(len(pixels))):
        return None
    if any(d.taps[-1] for d in dims) or not _is_of_bounds(guard, image):
        return None
    box = (ROW_BYTES // item_bytes, *[1] * len(dims))
    own = TensorMap(
        image.source,
        index(0),
        tuple(map(index, reversed(sizes))),
        tuple(map(index, reversed(strides))),
        box,
        (1, *(d.step for d in dims)),
    )
    return TmaWindow(
        (own,),
        is_k_contiguous=True,
        batch=(),
        rows=0,
        block_k=block_k,
        chunks=-(-sizes[-1] // block_k),
        dims=tuple(replace(d, taps=d.taps[:-1]) for d in dims),
        pixels=tuple(int(a.extent) for a in pixels),
        taps=tuple(int(a.extent) for a in taps),
    )


def _image_dim(place: ir.Expr, pixels: Sequence[Axis], k_axes: Sequence[Axis]) -> ImageDim | None:
    """Read an index of an image as a sum of a pixel's place and a tap's."""
    every = [a.var for a in (*pixels, *k_axes)]
    found = [stride(place, axis, every) for axis in every]
    steps = [None if s is None else constant(s) for s in found]
    start = constant(simplified(substitute(place, dict.fromkeys(every, index(0)))))
    if start is None or None in steps:
        return None
    known = [int(s) for s in steps if s is not None]
    total = sum((axis * s for axis, s in zip(every, known, strict=True)), start=index(start))
    if not sym.Analyzer().can_prove_equal(place, total):
        return None
    moved = [(i, s) for i, s in enumerate(known[: len(pixels)]) if s]
    taps = tuple(known[len(pixels) :])
    if not moved:
        return ImageDim(None, 1, taps, start)
    (row, step) = moved[0]
    if len(moved) > 1 or not 0 < step <= MAX_STEP:
        return None
    return ImageDim(row, step, taps, start)


def _is_of_bounds(guard: ir.Expr | None, image: ir.TensorLoad) -> bool:
    """Whether a condition says no more than that a pixel is one of the image."""
    if guard is None:
        return True
    if isinstance(guard, tirx.And):
        return _is_of_bounds(guard.a, image) and _is_of_bounds(guard.b, image)
    if isinstance(guard, tirx.LE | tirx.LT):
        least = guard.b - guard.a - int(isinstance(guard, tirx.LT))
    elif isinstance(guard, tirx.GE | tirx.GT):
        least = guard.a - guard.b - int(isinstance(guard, tirx.GT))
    else:
        return False
    analyzer = sym.Analyzer()
    ends = [
        (i, index(d) - 1 - i) for i, d in zip(image.indices, image.source.ty.shape, strict=True)
    ]
    return any(analyzer.can_prove_equal(least, end) for both in ends for end in both)


def _weight(
    operand: ir.Expr, own: Sequence[Axis], k_axes: Sequence[Axis], block_k: int
) -> TmaTaps | None:
    """View an operand as a weight: channels, taps that lie in memory as one, and columns."""
    if not is_plain(operand):
        return None
    *taps, channels = k_axes
    every = [a.var for a in (*own, *k_axes)]
    steps = {a: known_step(operand.source, operand.indices, a, every) for a in every}
    merged = [_merged(axes, steps) for axes in (taps, own)]
    sizes = [product([a.extent for a in axes]) for axes in ((channels,), taps, own)]
    place = offset(operand.source, operand.indices)
    start = simplified(substitute(place, dict.fromkeys(every, index(0))))
    count = constant(channels.extent)
    strides = [s or count for s in merged]  # 0 of a single tap
    aligned = [constant(start), *strides]
    if steps[channels.var] != 1 or count is None or None in (*merged, *aligned):
        return None
    item_bytes = DataType(str(operand.ty.dtype)).itemsize
    if any(s is None or s * item_bytes % ALIGNMENT for s in aligned):
        return None
    box = (ROW_BYTES // item_bytes, 1, 1)
    steps_of = tuple(index(s) for s in strides if s is not None)
    found = TensorMap(operand.source, start, tuple(sizes), steps_of, box)
    return TmaTaps((found,), True, (), 0, block_k, chunks=-(-count // block_k))


def _merged(axes: Sequence[Axis], steps: dict[ir.Var, int | None]) -> int | None:
    """Give the stride of axes that lie in memory as one, 0 of none; ``None`` if they do not."""
    for outer, inner in itertools.pairwise(axes):
        step = steps[inner.var]
        if step is None or steps[outer.var] != step * (constant(inner.extent) or 0):
            return None
    return steps[axes[-1].var] if axes else 0
