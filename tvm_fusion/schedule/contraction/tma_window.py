"""Operands of a convolution as tensor maps: windows of an image, and the weight by its taps.

    image[n, y, x, c]       A: boxes of 128 bytes of c times a rectangle of pixels, from
                            (n, y * stride + r * dilation - padding, x * .. + s * .. - .., c)
    packed[k, r, s, c]      B: boxes of 128 bytes of c of one tap times the columns of a tile

A step of K is a tap and a chunk of channels: for tap: for chunk. Pixels of the padding are elements
beyond the sizes, which the Tensor Memory Accelerator makes zeros; so are channels beyond the last
in both operands. A stride is the map's step from pixel to pixel. The rows of a tile are a rectangle
of as many output pixels, so that a window of them is one box: no thread computes an address.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tvm import DataType, ir, sym, tirx

from ...core.expressions import int64
from ...core.loops import constant, coordinates, index, product, simplified, substitute
from ...program.stage import Axis
from ..address import known_step, offset, stride
from ..gpu.tma import ALIGNMENT, MAX_BOX, MAX_RANK, MAX_STEP, ROW_BYTES, TensorMap
from .gemm_view import GemmView
from .tile_gemm_config import is_plain, unguarded
from .tma_operand import TmaOperand


@dataclass(frozen=True)
class ImageDim:
    """Where a tile's window lies along a dimension of the image.

    Attributes
    ----------
    row : int, optional
        The axis of M that moves along it, by its number.
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
        Extents of the axes of M.
    taps : tuple of int
        Extents of the window.
    rectangle : tuple of int
        Pixels of a tile along each axis of M: powers of two, together its rows.
    """

    dims: tuple[ImageDim, ...] = ()
    pixels: tuple[int, ...] = ()
    taps: tuple[int, ...] = ()
    rectangle: tuple[int, ...] = ()

    @property
    def steps(self) -> int:
        """Tiles along K."""
        return math.prod(self.taps) * self.chunks

    @property
    def tiles(self) -> tuple[int, ...]:
        """Tiles along each axis of M."""
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
        return all(self._span(d) <= MAX_BOX for d in self.dims)

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

    def pixel(self, m_tile: ir.Expr, row: ir.Expr) -> list[ir.Expr]:
        """Give the place along each axis of M of a row of a tile."""
        tile, inside = coordinates(m_tile, self.tiles), coordinates(row, self.rectangle)
        return [t * s + i for t, s, i in zip(tile, self.rectangle, inside, strict=True)]


def _rectangles(rows: int, rank: int) -> Iterator[tuple[int, ...]]:
    """Enumerate powers of two of a product."""
    if rank == 1:
        yield (rows,)
        return
    for shift in range(rows.bit_length()):
        if rows % (1 << shift) == 0:
            yield from ((1 << shift, *rest) for rest in _rectangles(rows >> shift, rank - 1))


def tma_window(view: GemmView, block_k: int) -> tuple[TmaWindow, TmaTaps] | None:
    """View A and B as an image and its weight, of tiles of no rows yet; ``None`` if they are none.

    Parameters
    ----------
    view : GemmView
        With the channels as last axis of K.
    block_k : int
        Terms of a tile.
    """
    image, guard = unguarded(view.a)
    if view.batch or not is_plain(image) or not is_plain(view.b):
        return None
    extents = [constant(a.extent) for a in (*view.m_axes, *view.k_axes)]
    shape = [constant(d) for d in image.source.ty.shape]
    *taps, channels = view.k_axes
    if None in (*extents, *shape) or not 1 < len(shape) <= MAX_RANK:
        return None
    sizes = [int(d) for d in shape if d is not None]
    item_bytes = DataType(str(image.ty.dtype)).itemsize
    strides = [math.prod(sizes[i:]) for i in range(1, len(sizes))]
    if any(s * item_bytes % ALIGNMENT for s in strides):
        return None
    last = _image_dim(image.indices[-1], view.m_axes, view.k_axes)
    dims = [_image_dim(i, view.m_axes, view.k_axes) for i in image.indices[:-1]]
    only_channels = ImageDim(None, 1, (*[0] * len(taps), 1), 0)
    if last != only_channels or not _is_of_bounds(guard, image):
        return None
    found = [d for d in dims if d is not None]
    rows = sorted(d.row for d in found if d.row is not None)
    moves = any(d.taps[-1] for d in found)
    if len(found) != len(dims) or rows != list(range(len(view.m_axes))) or moves:
        return None
    if constant(channels.extent) != sizes[-1]:
        return None
    behind = tuple(replace(d, taps=d.taps[:-1]) for d in reversed(found))
    box = (ROW_BYTES // item_bytes, *[1] * len(behind))
    steps = (1, *(d.step for d in behind))
    own = TensorMap(image.source, index(0), tuple(map(index, reversed(sizes))),
                    tuple(map(index, reversed(strides))), box, steps)  # fmt: skip
    chunks = -(-sizes[-1] // block_k)
    pixels, extent = ([int(a.extent) for a in axes] for axes in (view.m_axes, taps))
    weight = _weight(view, taps, channels, item_bytes)
    if weight is None:
        return None
    return (
        TmaWindow((own,), True, (), 0, block_k, chunks=chunks, dims=behind,
                  pixels=tuple(pixels), taps=tuple(extent)),
        TmaTaps((weight,), True, (), 0, block_k, chunks=chunks),
    )  # fmt: skip


def _image_dim(place: ir.Expr, m_axes: Sequence[Axis], k_axes: Sequence[Axis]) -> ImageDim | None:
    """Read an index of an image as a sum of a pixel's place and a tap's."""
    every = [a.var for a in (*m_axes, *k_axes)]
    found = [stride(place, axis, every) for axis in every]
    steps = [None if s is None else constant(s) for s in found]
    start = constant(simplified(substitute(place, dict.fromkeys(every, index(0)))))
    if start is None or None in steps:
        return None
    known = [int(s) for s in steps if s is not None]
    total = sum((axis * s for axis, s in zip(every, known, strict=True)), start=index(start))
    if not sym.Analyzer().can_prove_equal(place, total):
        return None
    moved = [(i, s) for i, s in enumerate(known[: len(m_axes)]) if s]
    taps = tuple(known[len(m_axes) :])
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
    view: GemmView, taps: Sequence[Axis], channels: Axis, item_bytes: int
) -> TensorMap | None:
    """Make the map of B: channels, taps that lie in memory as one, and columns."""
    b, every = view.b, [a.var for a in (*view.n_axes, *view.k_axes)]
    steps = {a: known_step(b.source, b.indices, a, every) for a in every}
    merged = [_merged(axes, steps) for axes in (taps, view.n_axes)]
    sizes = [product([a.extent for a in axes]) for axes in ((channels,), taps, view.n_axes)]
    place = offset(b.source, b.indices)
    start = simplified(substitute(place, dict.fromkeys(every, index(0))))
    strides = [s or constant(channels.extent) for s in merged]  # 0 of a single tap
    aligned = [constant(start), *strides]
    if steps[channels.var] != 1 or None in (*merged, *aligned):
        return None
    if any(int64(s) % (ALIGNMENT // item_bytes) for s in aligned):
        return None
    box = (ROW_BYTES // item_bytes, 1, 1)
    return TensorMap(b.source, start, tuple(sizes), tuple(index(s) for s in strides), box)


def _merged(axes: Sequence[Axis], steps: dict[ir.Var, int | None]) -> int | None:
    """Give the stride of axes that lie in memory as one, 0 of none; ``None`` if they do not."""
    for outer, inner in itertools.pairwise(axes):
        step = steps[inner.var]
        if step is None or steps[outer.var] != step * (constant(inner.extent) or 0):
            return None
    return steps[axes[-1].var] if axes else 0
