"""A behind index maps as a tensor map: rows of a tile are boxes, one behind the other.

    image[n, y, x, c], padded, cut into windows, reshaped, transposed; all c are terms of a row

    row m      digits of a mixed radix: those of its quotients and remainders in the indices
    index      start + sum of digits * steps, of each dimension of the image
    box        a run of the inner digits: rows that lie in memory as one rectangle
    tile       as many boxes as fit: of windows of 14x14 pixels, 9 rows of 14 are 126 of 128 rows

Pixels of the padding are elements beyond the sizes, which the Tensor Memory Accelerator makes
zeros: a condition around the load may say no more than that. Rows behind the last box of a tile are
multiplied as they are found, and not stored.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tvm import DataType, ir, sym, tirx

from .....core.tir.expressions import variables
from .....core.tir.loops import constant, coordinates, find, index, simplified, substitute
from .....program.stage import Axis
from ....gpu.matrix.wgmma import M
from ....gpu.memory.tma import ALIGNMENT, MAX_BOX, MAX_RANK, MAX_STEP, ROW_BYTES, TensorMap
from ....index.address import stride
from ...tile.config import is_plain, unguarded
from ...tile.problem import GemmProblem
from .matrix import TmaOperand

MOST_DIVISOR = 64  # of both sides of a condition
# Of 64 rows of a tile: a box takes longer than its few rows do. On an H200, with 9 boxes of 7 rows
# and tiles of 64x256, the product of 1764x768x2304 took 19.9 us; with 9 of 14 and 128x256, 13.9.
MOST_BOXES = 5


@dataclass(frozen=True)
class RowDim:
    """How rows move along a dimension of the image."""

    number: int  # of the dimension in the tensor map, behind the channels
    start: int  # where the first row is
    steps: tuple[int, ...]  # what each digit of a row adds


@dataclass(frozen=True)
class TmaRows(TmaOperand):
    """A whose tiles are boxes of rows."""

    digits: tuple[int, ...] = ()  # extents of a row's digits, the outermost first
    dims: tuple[RowDim, ...] = ()  # of the image, but for the channels
    runs: tuple[int, ...] = ()  # of each digit, how much of it is in a box
    count: int = 0  # boxes of a tile

    @property
    def tile_rows(self) -> int:
        """Rows that the boxes of a tile have, at most those of the tile."""
        return self.count * math.prod(self.runs)

    @property
    def copied_bytes(self) -> int:
        """Size of the boxes of a tile."""
        return self.tile_rows * self.block_k * self.item_bytes

    def of_rows(self, rows: int) -> TmaRows | None:
        """Choose the boxes of a tile: the fewest tiles, then the fewest boxes."""
        whole = math.prod(self.digits)
        found = []
        for runs in self._runs(rows):
            size = math.prod(runs)
            count = min(rows // size, -(-whole // size))
            if count * M <= MOST_BOXES * rows:
                found.append((-(-whole // (count * size)), count, runs))
        if not found:
            return None
        _, count, runs = min(found)
        return replace(self, maps=(self._map(runs),), rows=rows, runs=runs, count=count)

    def _runs(self, rows: int) -> Iterator[tuple[int, ...]]:
        """Enumerate runs: of some digit a divisor, of those within it all, of those around it 1."""
        whole, moving, size = [1] * len(self.digits), set[int](), 1
        for position in reversed(range(len(self.digits))):
            extent, moved = self.digits[position], self._moved(position)
            if moved is None or moved.number in moving:
                return
            most = min(rows // size, (MAX_BOX - 1) // moved.steps[position] + 1)
            for run in range(1 if size == 1 else 2, min(extent, most) + 1):
                if extent % run == 0:
                    whole[position] = run
                    yield tuple(whole)
            if extent > most:
                return
            moving.add(moved.number)
            whole[position], size = extent, size * extent

    def _moved(self, position: int) -> RowDim | None:
        """Find the only dimension that a digit moves along, by steps that a box can have."""
        moved = [d for d in self.dims if d.steps[position]]
        if len(moved) != 1 or not 0 < moved[0].steps[position] <= MAX_STEP:
            return None
        return moved[0]

    def _order(self, runs: Sequence[int]) -> list[RowDim]:
        """Order the dimensions as a box writes them: those of its runs first, from within."""
        first = [self._moved(p) for p in reversed(range(len(runs))) if runs[p] > 1]
        own = [d for d in first if d is not None]
        return [*own, *(d for d in self.dims if d not in own)]

    def _map(self, runs: Sequence[int]) -> TensorMap:
        (whole,) = self.maps
        order = self._order(runs)
        sizes, strides = [whole.sizes[0]], []
        box, steps = [whole.box[0]], [1]
        for dim in order:
            sizes.append(whole.sizes[1 + dim.number])
            strides.append(whole.strides[dim.number])
            moving = [p for p, run in enumerate(runs) if run > 1 and dim.steps[p]]
            box.append(runs[moving[0]] if moving else 1)
            steps.append(dim.steps[moving[0]] if moving else 1)
        return replace(
            whole, sizes=tuple(sizes), strides=tuple(strides), box=tuple(box), steps=tuple(steps)
        )

    def boxes(
        self, batch: dict[ir.Var, ir.Expr], firsts: Sequence[ir.Expr], k: ir.Expr
    ) -> list[tuple[int, int, list[ir.Expr]]]:
        """List the boxes of a tile: see :meth:`.matrix.TmaOperand.boxes`."""
        size = math.prod(self.runs)
        counts = [extent // run for extent, run in zip(self.digits, self.runs, strict=True)]
        begin = simplified(tirx.floordiv(firsts[0], index(size)))
        found = []
        for number in range(self.count):
            at = coordinates(begin + number, counts)
            digits = [x * run for x, run in zip(at, self.runs, strict=True)]
            places: list[ir.Expr] = [k]
            for dim in self._order(self.runs):
                place: ir.Expr = index(dim.start)
                for digit, step in zip(digits, dim.steps, strict=True):
                    place = place + digit * step if step else place
                places.append(place)
            found.append((number * size * ROW_BYTES, 0, places))
        return found


def tma_rows(problem: GemmProblem, block_k: int) -> TmaRows | None:
    """View A as boxes of rows, of tiles of no rows yet; ``None`` where TMA cannot copy it so."""
    image, guard = unguarded(problem.a)
    if not is_plain(image) or problem.batch or problem.ragged is not None:
        return None
    shape = [constant(d) for d in image.source.ty.shape]
    if not problem.is_static or None in shape or len(problem.k_axes) != 1:
        return None
    extents = [int(d) for d in shape if d is not None]
    (terms,) = problem.k_axes
    digits = _digits(image, problem.m_axes)
    if digits is None or int(terms.extent) != extents[-1]:
        return None
    analyzer = sym.Analyzer()
    for axis in digits.axes:
        analyzer.bind(axis.var, ir.Range.from_min_extent(index(0), index(axis.extent)))
    analyzer.bind(terms.var, ir.Range.from_min_extent(index(0), index(terms.extent)))
    places = [analyzer.simplify(substitute(i, digits.values)) for i in image.indices]
    if not places[-1].same_as(terms.var):
        return None
    moved = tirx.BufferLoad(image.source, places)
    if guard is not None and not _is_of_bounds(substitute(guard, digits.values), moved, analyzer):
        return None
    numbers = [n for n, extent in enumerate(extents[:-1]) if extent > 1]
    dims = [_row_dim(n, places[at], digits.axes) for n, at in enumerate(reversed(numbers))]
    kept = [d for d in dims if d is not None]
    if len(kept) != len(dims) or not dims or len(dims) >= MAX_RANK:
        return None
    item_bytes = DataType(str(image.ty.dtype)).itemsize
    strides = [math.prod(extents[n + 1 :]) for n in reversed(numbers)]
    if any(s * item_bytes % ALIGNMENT for s in strides):
        return None
    sizes = [extents[-1], *(extents[n] for n in reversed(numbers))]
    box = (ROW_BYTES // item_bytes, *[1] * len(dims))
    whole = TensorMap(
        image.source, index(0), tuple(map(index, sizes)), tuple(map(index, strides)), box
    )
    radix = tuple(int(a.extent) for a in digits.axes)
    return TmaRows((whole,), True, (), 0, block_k, digits=radix, dims=tuple(kept))


@dataclass(frozen=True)
class _Digits:
    axes: tuple[Axis, ...]  # the outermost first
    values: dict[ir.Var, ir.Expr]  # of the axes of M


def _digits(image: ir.TensorLoad, axes: Sequence[Axis]) -> _Digits | None:
    """Split the axes of rows at the divisors of their quotients and remainders."""
    made: list[Axis] = []
    values: dict[ir.Var, ir.Expr] = {}
    for axis in axes:
        extent = int(axis.extent)
        cuts = {1, extent} | {
            int(node.b)
            for i in image.indices
            for kind in (tirx.FloorDiv, tirx.FloorMod)
            for node in find(i, kind)
            if variables(node.a) == {axis.var} and constant(node.b) is not None
        }
        order = sorted(c for c in cuts if c <= extent)
        if any(outer % inner for inner, outer in itertools.pairwise(order)):
            return None
        value: ir.Expr = index(0)
        own: list[Axis] = []
        for inner, outer in itertools.pairwise(order):
            digit = Axis(tirx.Var(f"{axis.var.name}_{inner}", "int64"), index(outer // inner))
            own.insert(0, digit)
            value = value + digit.var * inner
        made += own
        values[axis.var] = value
    return _Digits(tuple(made), values)


def _row_dim(number: int, place: ir.Expr, digits: Sequence[Axis]) -> RowDim | None:
    """Read an index as a sum of digits times steps; ``None`` if it is none."""
    every = [a.var for a in digits]
    steps = [constant(s) if (s := stride(place, v, every)) is not None else None for v in every]
    start = constant(simplified(substitute(place, dict.fromkeys(every, index(0)))))
    if start is None or None in steps:
        return None
    known = tuple(int(s) for s in steps if s is not None)
    total = sum((v * s for v, s in zip(every, known, strict=True)), start=index(start))
    if not sym.Analyzer().can_prove_equal(place, total):
        return None
    return RowDim(number, start, known)


def _is_of_bounds(guard: ir.Expr, image: ir.TensorLoad, analyzer: sym.Analyzer) -> bool:
    """Whether a condition says no more than that a pixel is one of the image.

    Also where both sides were divided: 7 * y + r // 2 < 16 is 14 * y + r < 32.
    """
    if isinstance(guard, tirx.And):
        return all(_is_of_bounds(x, image, analyzer) for x in (guard.a, guard.b))
    if isinstance(guard, tirx.LT | tirx.LE):
        below = guard.a - guard.b - int(isinstance(guard, tirx.LE))
    elif isinstance(guard, tirx.GT | tirx.GE):
        below = guard.b - guard.a - int(isinstance(guard, tirx.GE))
    else:
        return False
    # below < 0, or else -below - 1 >= 0, as of an index less its bound.
    below = analyzer.simplify(below)
    for place, extent in zip(image.indices, image.source.ty.shape, strict=True):
        ends = (below, place - index(extent)), (analyzer.simplify(-1 - below), place)
        for divisor, (own, end) in itertools.product(_divisors(int(extent)), ends):
            if analyzer.can_prove_equal(own, tirx.floordiv(end, index(divisor))):
                return True
    return False


def _divisors(extent: int) -> list[int]:
    return [n for n in range(1, min(extent, MOST_DIVISOR) + 1) if extent % n == 0]
