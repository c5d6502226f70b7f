"""Statements and index arithmetic over the axes of a row."""

from collections.abc import Callable, Sequence

import tvm_ffi
from tvm import ir, tirx

from ....core.tir.loops import coordinates, index, loop, product, substitute
from ....program.stage import Axis

Pairs = list[tuple[ir.Var, ir.Expr]]


def nest(axes: Sequence[Axis], body: Callable[[list[ir.Expr]], tirx.Stmt]) -> tirx.Stmt:
    """Write serial loops over some axes, the first outermost."""

    def level(depth: int, done: list[ir.Expr]) -> tirx.Stmt:
        if depth == len(axes):
            return body(done)
        axis = axes[depth]
        return loop(axis.var.name, axis.extent, lambda i: level(depth + 1, [*done, i]))

    return level(0, [])


def unflatten(flat: ir.Expr, axes: Sequence[Axis]) -> list[ir.Expr]:
    """Return the row-major coordinates of a flat position."""
    return coordinates(flat, [axis.extent for axis in axes])


def flatten(indices: Sequence[ir.Expr], extents: Sequence[ir.Expr]) -> ir.Expr:
    """Return the row-major position of coordinates; those of a flat position fold back to it."""
    parts: list[tuple[ir.Expr, ir.Expr]] = []
    for position, extent in zip(indices, map(index, extents), strict=True):
        if parts and isinstance(position, tirx.FloorMod):
            outer, size = parts[-1]
            is_one = tvm_ffi.structural_equal(position.b, extent) and tvm_ffi.structural_equal(
                tirx.floordiv(position.a, extent), outer
            )
            if is_one:
                parts[-1] = position.a, size * extent
                continue
        parts.append((position, extent))
    flat = parts[0][0] if parts else index(0)
    for position, extent in parts[1:]:
        flat = flat * extent + position
    return flat


def volume(axes: Sequence[Axis]) -> ir.Expr:
    """Multiply the extents of axes."""
    return product([axis.extent for axis in axes])


def static_volume(axes: Sequence[Axis], symbolic: int) -> int:
    """Multiply the extents of axes, a symbolic one taken for a number."""
    total = 1
    for axis in axes:
        total *= axis.size if axis.size is not None else symbolic
    return total


def replace(
    expr: ir.Expr,
    pairs: Sequence[tuple[ir.Var, ir.Expr]],
    load: Callable[[ir.TensorLoad], ir.Expr] = lambda load: load,
) -> ir.Expr:
    """Substitute axes and redirect loads, the indices of which are substituted already."""
    return substitute(expr, dict(pairs), load)


def bind(axes: Sequence[Axis], values: Sequence[ir.Expr]) -> Pairs:
    """Pair axes with their values."""
    return [(axis.var, value) for axis, value in zip(axes, values, strict=True)]
