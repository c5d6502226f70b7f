"""The weight of a convolution in the order of tiles, packed at compile time.

for tile, window around runs, word, column, lane:
    packed[tile, ..., word, column, lane] = W[k, c, window]    of element word * group + lane of K
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import ir, tirx

from ...._tvm.buffer import declare
from ....core.expressions import load
from ....core.loops import ceildiv, constant, index, substitute
from ....program.stage import Axis
from ...contraction.problem.packing_function import packing_function
from ..dense.weight import KernelWeight
from ..problem.groups import Band
from .problem import TileConv


class TileWeight(KernelWeight):
    """``[k tile][window][word of K][k in the tile][k of the word]``, padded with zeros.

    Parameters
    ----------
    width : int
        Output channels of a tile.
    """

    def __init__(self, conv: TileConv, width: int) -> None:
        problem = conv.single
        self._conv, self._width = conv, width
        self.band = Band(problem, width)
        shape = [
            ceildiv(problem.k.extent, width),
            *(index(a.extent) for a in conv.outer),
            index(conv.steps * conv.words),
            index(width),
            index(conv.group),
        ]
        dtype = str(problem.weight.ty.dtype)
        super().__init__(problem, declare(shape, dtype, f"{problem.source.name}_packed"))

    def at(self, tile: ir.Expr, window: Sequence[ir.Expr], word: ir.Expr, k: ir.Expr) -> ir.Expr:
        """Read the first element of a word."""
        return load(self.buffer, [tile, *window, word, k, index(0)])

    def packing(self) -> tirx.PrimFunc:
        """Make the function that packs."""
        conv, problem = self._conv, self._conv.single
        names = ["tile", *(a.var.name for a in conv.outer), "word", "column", "lane"]
        axes = [
            Axis(tirx.Var(name, "int64"), extent)
            for name, extent in zip(names, self.buffer.ty.shape, strict=True)
        ]
        tile, *window, word, column, lane = (a.var for a in axes)
        k, element = tile * self._width + column, word * conv.group + lane
        place = dict(zip((a.var for a in conv.outer), window, strict=True))
        channel = element
        if conv.column is not None:
            place[conv.column.var] = tirx.floordiv(element, index(problem.block))
            channel = tirx.floormod(element, index(problem.block))
        c = self.band.begin(tile) + channel
        place |= {problem.k.var: k, conv.c.var: c}
        inside = [c < self.band.end(tile)]
        if problem.channels % self._width or constant(problem.k.extent) != problem.channels:
            inside.append(k < index(problem.channels))
        value = substitute(problem.weight, place)
        for condition in inside:
            value = tirx.if_then_else(condition, value, tirx.const(0, str(value.ty.dtype)))
        return packing_function(problem.source, self.buffer, axes, value)
