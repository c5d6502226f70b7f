"""What norms are made of where products give their statistics, as operators of TensorIR.

tile_statistics(x)            mean[m, t] and square[m, t] of 64 columns; or the sum of squares of x
norm_rows(means, squares)     mean[m] and rstd[m]; or of squares alone, rstd
normed_product(c, ...)        (c[m, n] - mean[m] sums[n]) rstd[m]
"""

from collections.abc import Callable
from typing import Any

from tvm import ir, te, tirx

WIDTH = 64  # columns of a tile


def statistics_of(is_centred: bool) -> Callable[[te.Tensor], Any]:
    """Make the operator of a matrix that gives means and squares of tiles, or squares alone."""

    def tile_statistics(x: te.Tensor) -> Any:
        rows, columns = x.shape
        shape = (rows, int(columns) // WIDTH)
        axes = [te.reduce_axis((0, WIDTH), "j") for _ in range(2)]

        def at(m: ir.Expr, t: ir.Expr, j: Any) -> ir.Expr:
            return x[m, t * WIDTH + j].astype("float32")

        if not is_centred:
            return te.compute(
                shape,
                lambda m, t: te.sum(at(m, t, axes[0]) * at(m, t, axes[0]), axis=axes[0]),
                name="tile_squares",
            )
        sums = te.compute(shape, lambda m, t: te.sum(at(m, t, axes[0]), axis=axes[0]), "tile_sum")
        share = tirx.const(1 / WIDTH, "float32")

        def square(m: ir.Expr, t: ir.Expr) -> ir.Expr:
            deviation = at(m, t, axes[1]) - sums[m, t] * share
            return te.sum(deviation * deviation, axis=axes[1])

        means = te.compute(shape, lambda m, t: sums[m, t] * share, name="tile_mean")
        return [means, te.compute(shape, square, name="tile_squares")]

    return tile_statistics


def row_values(rows: int, columns: int, epsilon: float) -> Callable[..., Any]:
    """Make the operator of statistics that gives mean and rstd of rows; of squares, rstd alone."""
    share_of_row, guard = tirx.const(1 / columns, "float32"), tirx.const(epsilon, "float32")
    shape, tiles = (rows, 1), columns // WIDTH
    t, u = te.reduce_axis((0, tiles), "t"), te.reduce_axis((0, tiles), "u")

    def rstd_of(squares: te.Tensor) -> te.Tensor:
        return te.compute(
            shape, lambda m, _: tirx.rsqrt(squares[m] * share_of_row + guard), name="row_rstd"
        )

    def norm_rows(*statistics: te.Tensor) -> Any:
        squares = statistics[-1]
        if len(statistics) == 1:
            return rstd_of(
                te.compute(shape[:1], lambda m: te.sum(squares[m, u], axis=u), name="row_squares")
            )
        means, share = statistics[0], tirx.const(1 / tiles, "float32")
        total = te.compute(shape[:1], lambda m: te.sum(means[m, t], axis=t), name="row_sum")

        def square(m: ir.Expr) -> ir.Expr:
            deviation = means[m, u] - total[m] * share
            return te.sum(
                squares[m, u] + tirx.const(float(WIDTH), "float32") * deviation * deviation, axis=u
            )

        rstd = rstd_of(te.compute(shape[:1], square, name="row_squares"))
        mean = te.compute(shape, lambda m, _: total[m] * share, name="row_mean")
        return [mean, rstd]

    return norm_rows


def normed_product(
    product: te.Tensor, mean: te.Tensor, rstd: te.Tensor, sums: te.Tensor, *shift: te.Tensor
) -> Any:
    """Apply the norm after the product: (C - mean * column_sums) * rstd + shift.

    ``product`` is ``[M, N]``, ``mean`` and ``rstd`` are ``[M, 1]``, ``sums`` of the columns of the
    other matrix ``[N]``, as is the shift, if there is one; float32, vectors of any type.
    """

    def at(m: ir.Expr, n: ir.Expr) -> ir.Expr:
        scaled = (product[m, n] - mean[m, 0] * sums[n].astype("float32")) * rstd[m, 0]
        for vector in shift:
            scaled = scaled + vector[n].astype("float32")
        return scaled

    return te.compute(product.shape, at, name="normed_product")
