"""The weight of a Winograd convolution, transformed and packed at compile time: ``U = G w G^T``.

U[k tile][f][c][k in the tile], f a place of the transformed window, computed in float64
"""

from __future__ import annotations

from tvm import ir, tirx

from ..._tvm.buffer import declare
from ...core.loops import ceildiv, constant, coordinates, index, substitute
from ...program.stage import Axis
from ..contraction.problem.packing_function import packing_function
from .problem import ConvProblem
from .weight_cpu import KernelWeight
from .winograd_transforms import WINDOW, weight_row


class WinogradWeight(KernelWeight):
    """Transformed weights, padded with zeros to whole tiles.

    Parameters
    ----------
    problem : ConvProblem
        The convolution.
    window : tuple of Axis
        Rows and columns of its window.
    m : int
        Rows and columns of results of a tile.
    width : int
        Output channels of a tile.
    """

    def __init__(self, problem: ConvProblem, window: tuple[Axis, Axis], m: int, width: int) -> None:
        if problem.c is None:
            raise RuntimeError("a depthwise convolution has no products to save")
        self._window, self._m, self._width, self._c = window, m, width, problem.c
        places = (m + WINDOW - 1) ** 2
        tiles = ceildiv(problem.k.extent, width)
        shape = [tiles, index(places), index(problem.c.extent), index(width)]
        super().__init__(problem, declare(shape, "float32", f"{problem.source.name}_winograd"))

    def packing(self) -> tirx.PrimFunc:
        """Make the function that transforms and packs."""
        problem, m = self._problem, self._m
        axes = [
            Axis(tirx.Var(name, "int64"), extent)
            for name, extent in zip(("tile", "f", "c", "lane"), self.buffer.ty.shape, strict=True)
        ]
        tile, f, c, lane = (a.var for a in axes)
        k = tile * self._width + lane
        row, column = coordinates(f, [m + WINDOW - 1] * 2)

        def weight(r: int, s: int) -> ir.Expr:
            place = {a.var: index(n) for a, n in zip(self._window, (r, s), strict=True)}
            place |= {problem.k.var: k, self._c.var: c}
            return tirx.Cast("float64", substitute(problem.weight, place))

        rows = [weight_row(m, column, [weight(r, s) for s in range(WINDOW)]) for r in range(WINDOW)]
        value = tirx.Cast("float32", weight_row(m, row, rows))
        if problem.channels % self._width or constant(problem.k.extent) != problem.channels:
            zero = tirx.const(0, "float32")
            value = tirx.if_then_else(k < index(problem.channels), value, zero)
        return packing_function(problem.source, self.buffer, axes, value)
