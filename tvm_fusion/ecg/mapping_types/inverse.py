"""Inverse of a write: the iterators of a statement from the indices of the element it writes."""

from collections.abc import Mapping, Sequence

from tvm import ir, sym, tirx
from tvm.sym.iter_affine_map import IterMapLevel

from ...core.tir.loops import substitute
from .loads import Unreadable, variables_of


def invert_write(
    indices: Sequence[ir.Expr],
    iterators: Mapping[ir.Var, ir.Range],
    dims: Sequence[ir.Var],
    shape: Sequence[ir.Expr],
) -> tuple[dict[ir.Var, ir.Expr], list[ir.Expr]]:
    """Solve ``indices(iterators) == dims`` for the iterators.

    Parameters
    ----------
    indices
        Index expressions of a store, one per dimension of its buffer.
    iterators
        The iterators around the store, each with the range it runs over.
    dims
        Variables that stand for the element written.

    Returns
    -------
    solution
        Value of every iterator that occurs in `indices`, as expressions over `dims`.
    conditions
        What `dims` must fulfil for the element to be written at all.

    Raises
    ------
    Unreadable
        If the indices are not affine and one-to-one in the iterators.
    """
    solution: dict[ir.Var, ir.Expr] = {}
    conditions: list[ir.Expr] = []
    joint: list[int] = []
    for k, index in enumerate(indices):
        occurring = [var for var in variables_of(index) if var in iterators]
        if isinstance(index, ir.Var) and index in iterators and index not in solution:
            solution[index] = dims[k]
            conditions += _within(dims[k], iterators[index], shape[k])
        elif not occurring:
            if not is_int(shape[k], 1):
                conditions.append(_equal(dims[k], index))
        elif len(occurring) == 1 and occurring[0] not in solution:
            (var,) = occurring
            solved = _solve_linear(index, var, dims[k])
            if solved is None:
                joint.append(k)
                continue
            solution[var], divisible = solved
            conditions += [*divisible, *_within(solution[var], iterators[var], None)]
        else:
            joint.append(k)
    if joint:
        unsolved = [
            k for k in joint if not variables_of(indices[k]) & set(iterators) <= set(solution)
        ]
        if unsolved:
            solution |= _solve_jointly(
                [indices[k] for k in unsolved],
                {var: r for var, r in iterators.items() if var not in solution},
                [dims[k] for k in unsolved],
                [shape[k] for k in unsolved],
            )
        conditions += [
            _equal(dims[k], substitute(indices[k], solution)) for k in joint if k not in unsolved
        ]
    return solution, conditions


def _solve_linear(index: ir.Expr, var: ir.Var, dim: ir.Var) -> tuple[ir.Expr, list[ir.Expr]] | None:
    """Solve ``scale * var + offset == dim``; the condition says that the division is exact."""
    equation = sym.detect_linear_equation(index, [var])
    if not equation or not is_int(equation[0]) or is_int(equation[0], 0):
        return None
    scale, offset = equation[0].value, equation[1]
    if scale < 0:
        scale, distance = -scale, offset - dim
    else:
        distance = dim - offset
    if scale == 1:
        return distance, []
    return tirx.floordiv(distance, scale), [_equal(tirx.floormod(distance, scale), 0)]


def _solve_jointly(
    indices: Sequence[ir.Expr],
    iterators: Mapping[ir.Var, ir.Range],
    dims: Sequence[ir.Var],
    shape: Sequence[ir.Expr],
) -> dict[ir.Var, ir.Expr]:
    """Solve indices that share iterators or split one, such as ``n // 4, n % 4``."""
    used = {var: iterators[var] for var in variables_of(*indices) if var in iterators}
    forward = sym.detect_iter_map(indices, used, True, IterMapLevel.Bijective)
    if not forward.indices or not _same_size(shape, [r.extent for r in used.values()]):
        raise Unreadable("writes at indices that are not an invertible map of its iterators")
    inverse = dict(sym.inverse_affine_iter_map(forward.indices, dims).items())
    # Iterators that run over one value only are left out of the inverse.
    return {var: inverse.get(var, used[var].min) for var in used}


def _within(value: ir.Expr, range_: ir.Range, size: ir.Expr | None) -> list[ir.Expr]:
    """Return the conditions that `value` lies in `range_`; none where it must: in [0, size)."""
    if size is not None and is_int(range_.min, 0) and _same_size([size], [range_.extent]):
        return []
    return [range_.min <= value, value < range_.min + range_.extent]


def _same_size(first: Sequence[ir.Expr], second: Sequence[ir.Expr]) -> bool:
    return sym.Analyzer().can_prove_equal(product(first), product(second))


def product(factors: Sequence[ir.Expr]) -> ir.Expr:
    """Multiply extents; 1 for none."""
    result: ir.Expr = tirx.IntImm("int64", 1)
    for factor in factors:
        result = result * _wide(factor)
    return result


def row_major(indices: Sequence[ir.Expr], shape: Sequence[ir.Expr]) -> ir.Expr:
    """Return the position of an element in row-major order."""
    position: ir.Expr = tirx.IntImm("int64", 0)
    for index, extent in zip(indices, shape, strict=True):
        position = position * _wide(extent) + _wide(index)
    return position


def is_int(expr: ir.Expr, value: int | None = None) -> bool:
    """Whether `expr` is an integer constant, and if given, this one."""
    return isinstance(expr, tirx.IntImm) and value in (None, expr.value)


def _equal(first: ir.Expr, second: ir.Expr | int) -> ir.Expr:
    if isinstance(second, int):
        return tirx.EQ(first, tirx.IntImm(first.ty.dtype, second))
    if second.ty != first.ty:
        second = tirx.Cast(first.ty.dtype, second)
    return tirx.EQ(first, second)


def _wide(expr: ir.Expr) -> ir.Expr:
    return expr if expr.ty.dtype == "int64" else tirx.Cast("int64", expr)
