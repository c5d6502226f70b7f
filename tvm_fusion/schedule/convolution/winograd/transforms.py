"""The transforms of Winograd's minimal filtering, ``y = A^T ((G w G^T) * (B^T d B)) A``.

Lavin and Gray ("Fast Algorithms for Convolutional Neural Networks", CVPR 2016): F(m x m, 3 x 3)
takes (m + 2)^2 products for m^2 results of a window of 9. The points are 0, 1, -1 and, for m = 4,
2, -2; the last one is infinity.
"""

from collections.abc import Sequence
from fractions import Fraction

from tvm import ir, tirx

from ...._tvm.ir.buffer import declare
from ....core.tir.loops import ceildiv, constant, coordinates, index, substitute
from ....program.stage import Axis
from ...contraction.problem.functions.packing import packing_function
from ..dense.weight import KernelWeight
from ..problem.problem import ConvProblem

WINDOW = 3
SIZES = (2, 4)  # m

Matrix = tuple[tuple[Fraction, ...], ...]


def _matrix(*rows: Sequence[int], over: Sequence[int] | None = None) -> Matrix:
    divisors = over or [1] * len(rows)
    return tuple(
        tuple(Fraction(n, by) for n in row) for row, by in zip(rows, divisors, strict=True)
    )


#: ``B^T`` by m, of the image.
INPUT: dict[int, Matrix] = {
    2: _matrix((1, 0, -1, 0), (0, 1, 1, 0), (0, -1, 1, 0), (0, -1, 0, 1)),
    4: _matrix(
        (4, 0, -5, 0, 1, 0),
        (0, -4, -4, 1, 1, 0),
        (0, 4, -4, -1, 1, 0),
        (0, -2, -1, 2, 1, 0),
        (0, 2, -1, -2, 1, 0),
        (0, 4, 0, -5, 0, 1),
    ),
}
#: ``G`` by m, of the weight.
WEIGHT: dict[int, Matrix] = {
    2: _matrix((1, 0, 0), (1, 1, 1), (1, -1, 1), (0, 0, 1), over=(1, 2, 2, 1)),
    4: _matrix(
        (1, 0, 0),
        (-1, -1, -1),
        (-1, 1, -1),
        (1, 2, 4),
        (1, -2, 4),
        (0, 0, 1),
        over=(4, 6, 6, 24, 24, 1),
    ),
}
#: ``A^T`` by m, of the products.
OUTPUT: dict[int, Matrix] = {
    2: _matrix((1, 1, 1, 0), (0, 1, -1, 1)),
    4: _matrix((1, 1, 1, 1, 1, 0), (0, 1, -1, 2, -2, 0), (0, 1, 1, 4, 4, 0), (0, 1, -1, 8, -8, 1)),
}


def transform_input(m: int, d: Sequence[ir.Expr]) -> list[ir.Expr]:
    """Return ``B^T d``, with the sums that two rows share written alike."""
    if m == 2:
        return [d[0] - d[2], d[1] + d[2], d[2] - d[1], d[3] - d[1]]
    ones = d[4] - d[2] * _f(4), d[3] - d[1] * _f(4)
    twos = d[4] - d[2], (d[3] - d[1]) * _f(2)
    return [
        d[0] * _f(4) + (d[4] - d[2] * _f(5)),
        ones[0] + ones[1],
        ones[0] - ones[1],
        twos[0] + twos[1],
        twos[0] - twos[1],
        d[1] * _f(4) + (d[5] - d[3] * _f(5)),
    ]


def transform_output(m: int, p: Sequence[ir.Expr]) -> list[ir.Expr]:
    """Return ``A^T p``, with the sums that two rows share written alike."""
    ones = p[1] + p[2], p[1] - p[2]
    if m == 2:
        return [p[0] + ones[0], ones[1] + p[3]]
    twos = p[3] + p[4], p[3] - p[4]
    return [
        (p[0] + ones[0]) + twos[0],
        ones[1] + twos[1] * _f(2),
        ones[0] + twos[0] * _f(4),
        (ones[1] + p[5]) + twos[1] * _f(8),
    ]


def weight_row(m: int, row: ir.Expr, w: Sequence[ir.Expr]) -> ir.Expr:
    """Return a row of ``G w`` in float64, the row chosen by an index."""

    def entry(column: int) -> ir.Expr:
        *rows, last = (tirx.const(float(r[column]), "float64") for r in WEIGHT[m])
        value = last
        for number, one in reversed(list(enumerate(rows))):
            value = tirx.Select(row == number, one, value)
        return value

    return sum((entry(n) * x for n, x in enumerate(w[1:], 1)), entry(0) * w[0])


def _f(number: int) -> ir.Expr:
    return tirx.const(number, "float32")


# The weight of a Winograd convolution, transformed and packed at compile time: ``U = G w G^T``.
#
# U[k tile][f][c][k in the tile], f a place of the transformed window, computed in float64
class WinogradWeight(KernelWeight):
    """Transformed weights, padded with zeros to whole tiles.

    Parameters
    ----------
    window
        Rows and columns of its window.
    m
        Rows and columns of results of a tile.
    width
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
