"""The weight of a direct convolution, packed at compile time in the order in which it is read.

for tile, block, r, s, c, lane:        k = tile * width + lane;  C = block * depth + c
    packed[tile, block, r, s, c, lane] = W[k, C, r, s] if k < K and C < the tile's channels else 0
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

from tvm import ir, tirx

from ...._tvm.ir.buffer import declare
from ....core.tir.expressions import load
from ....core.tir.loops import ceildiv, constant, coordinates, index, loop, substitute
from ....program.stage import Axis
from ...contraction.problem.functions.packing import packing_function
from ...cpu.register_tile import in_vectors
from ...math.half_math import HALF_TYPES
from ..problem.groups import Band
from ..problem.problem import ConvProblem

WIDENED = 3  # tiles that pay for widening a weight before they read it


class KernelWeight(ABC):
    """A weight that a kernel reads as it was packed at compile time."""

    band: Band

    def __init__(self, problem: ConvProblem, buffer: ir.Var) -> None:
        self._problem, self.source, self.buffer = problem, problem.source, buffer

    def buffers(self) -> list[ir.Var]:
        """List the buffers of one task."""
        return []

    def begin_tile(self, tile: ir.Expr) -> tirx.Stmt | None:
        """Prepare the weight of a tile of channels."""
        return None

    @abstractmethod
    def packing(self) -> tirx.PrimFunc:
        """Make the function that packs."""


class PackedWeight(KernelWeight):
    """``[k tile][block of c][window][c in the block][k in the tile]``, padded with zeros.

    Of grouped convolutions, c counts from the first channel that a tile reads. Where that is no
    multiple of a block of the image, blocks are of one channel. Weights of narrow types stay
    narrow.

    Parameters
    ----------
    width
        Output channels of a tile.
    tiles
        Tiles of pixels of a task that read the same weight: a weight of a half type is in float32
        while many do.
    is_small
        Whether a weight of a half type is packed in float32, so that no task widens it.
    """

    def __init__(
        self, problem: ConvProblem, width: int, tiles: int = 1, is_small: bool = False
    ) -> None:
        self._width = width
        self.band = Band(problem, width)
        self.block = problem.depth if self.band.is_aligned else 1
        shape = [
            ceildiv(problem.k.extent, width),
            ceildiv(self.band.most, self.block),
            *(index(a.extent) for a in problem.window),
            index(self.block),
            index(width),
        ]
        self._core, self._casts = _core(problem.weight)
        if is_small and str(self._core.ty.dtype) in HALF_TYPES:
            self._core, self._casts = problem.weight, []
        dtype = str(self._core.ty.dtype)
        super().__init__(problem, declare(shape, dtype, f"{problem.source.name}_packed"))
        self._wide: ir.Var | None = None
        if tiles >= WIDENED and dtype in HALF_TYPES and self._casts:
            self._wide = declare(shape[1:], self._casts[-1], "columns", "local")

    def buffers(self) -> list[ir.Var]:
        """List the buffers of one task."""
        return [] if self._wide is None else [self._wide]

    def begin_tile(self, tile: ir.Expr) -> tirx.Stmt | None:
        """Widen the weight of a tile of channels."""
        wide = self._wide
        if wide is None:
            return None
        extents = [int(d) for d in wide.ty.shape]
        rows = math.prod(extents[:-1])

        def row(i: ir.Expr) -> tirx.Stmt:
            place = coordinates(i, extents[:-1])

            def element(lane: ir.Expr) -> tirx.Stmt:
                where = [*place, lane]
                return tirx.BufferStore(
                    wide, self._converted(load(self.buffer, [tile, *where])), where
                )

            return in_vectors(self._width, element)

        return loop("row", rows, row)

    def at(
        self,
        tile: ir.Expr,
        block_c: ir.Expr,
        window: Sequence[ir.Expr],
        c: ir.Expr,
        lane: ir.Expr,
    ) -> ir.Expr:
        """Read an element, in the type that is multiplied."""
        if self._wide is not None:
            return load(self._wide, [block_c, *window, c, lane])
        return self._converted(self.element(tile, block_c, window, c, lane))

    def _converted(self, value: ir.Expr) -> ir.Expr:
        """Convert an element as it is packed to the type that is multiplied."""
        for dtype in self._casts:
            value = tirx.Cast(dtype, value)
        return value

    def element(
        self,
        tile: ir.Expr,
        block_c: ir.Expr,
        window: Sequence[ir.Expr],
        c: ir.Expr,
        lane: ir.Expr,
    ) -> ir.Expr:
        """Read an element as it is packed."""
        return load(self.buffer, [tile, block_c, *window, c, lane])

    def packing(self) -> tirx.PrimFunc:
        """Make the function that packs."""
        problem = self._problem
        names = ["tile", "block", *(a.var.name for a in problem.window), "c", "lane"]
        axes = [
            Axis(tirx.Var(name, "int64"), extent)
            for name, extent in zip(names, self.buffer.ty.shape, strict=True)
        ]
        tile, block_c, *window, inner, lane = (a.var for a in axes)
        k, c = tile * self._width + lane, block_c * self.block + inner
        place = dict(zip((a.var for a in problem.window), window, strict=True))
        place[problem.k.var] = k
        inside = []
        if problem.channels % self._width or constant(problem.k.extent) != problem.channels:
            inside.append(k < index(problem.channels))
        if problem.c is not None:
            c = self.band.begin(tile) + c
            place[problem.c.var] = c
            if self.band.size is None or self.band.size % self.block:
                inside.append(c < self.band.end(tile))
        value = substitute(self._core, place)
        for condition in inside:
            value = tirx.if_then_else(condition, value, tirx.const(0, str(value.ty.dtype)))
        return packing_function(problem.source, self.buffer, axes, value)


def _core(weight: ir.Expr) -> tuple[ir.Expr, list[str]]:
    """Take the casts off a weight, which is packed as it is; they are given innermost first."""
    casts: list[str] = []
    while isinstance(weight, tirx.Cast):
        casts.insert(0, str(weight.ty.dtype))
        weight = weight.value
    return weight, casts
