"""Rows: re-axing is a proved bijection or nothing, divisions by symbolic sizes are right."""

import itertools

import numpy as np
import pytest
import tvm_ffi
from tvm import ir, tirx

from tvm_fusion.core.tir.polynomial import Polynomials
from tvm_fusion.program.domain import Domain
from tvm_fusion.program.stage import Axis
from tvm_fusion.program.stages.reindex import reindex


def _axis(name: str, extent: int | ir.Expr) -> Axis:
    extent = tirx.IntImm("int64", extent) if isinstance(extent, int) else extent
    return Axis(ir.Var(name, "int64"), extent)


def _number(expr: ir.Expr, given: dict[ir.Var, int]) -> int:
    """Evaluate index arithmetic, independently of TVM's simplifiers."""
    if isinstance(expr, tirx.IntImm):
        return int(expr.value)
    if isinstance(expr, ir.Var):
        return given[expr]
    a, b = _number(expr.a, given), _number(expr.b, given)
    operations = {
        tirx.Add: lambda: a + b,
        tirx.Sub: lambda: a - b,
        tirx.Mul: lambda: a * b,
        tirx.FloorDiv: lambda: a // b,
        tirx.FloorMod: lambda: a % b,
    }
    return operations[type(expr)]()


def _points(axes, sizes):
    ranges = [range(_number(a.extent, sizes)) for a in axes]
    for values in itertools.product(*ranges):
        yield {**sizes, **dict(zip((a.var for a in axes), values, strict=True))}


N, S = ir.Var("n", "int64"), ir.Var("s", "int64")


def _check(axes, rows, extents, sizes, complete=False):
    extents = [tirx.IntImm("int64", e) if isinstance(e, int) else e for e in extents]
    found = reindex(axes, rows, extents, complete)
    assert found is not None
    seen = set()
    for point in _points(axes, sizes):
        new = tuple(_number(e, point) for e in found.forward)
        for value, axis in zip(new, found.axes, strict=True):
            assert 0 <= value < _number(axis.extent, sizes)
        seen.add(new)
        at = {**sizes, **dict(zip((a.var for a in found.axes), new, strict=True))}
        for var, expr in found.inverse.items():
            assert _number(expr, at) == point[var]
        assert [_number(r, point) for r in rows] == list(new[: len(rows)])
    assert len(seen) == np.prod([_number(a.extent, sizes) for a in found.axes])
    return found


def test_reordered_axes_keep_their_variables():
    i, j, k = _axis("i", 3), _axis("j", 4), _axis("k", 5)
    found = _check([i, j, k], [k.var, i.var], [5, 3], {})
    assert not found.inverse
    assert [a.var.name for a in found.axes] == ["k", "i", "j"]


def test_split_axis():
    i, c = _axis("i", 3), _axis("c", 12)
    found = _check([i, c], [i.var, c.var // 4], [3, 3], {})
    assert [int(a.extent.value) for a in found.axes] == [3, 3, 4]
    _check([i, c], [c.var % 4], [4], {})
    _check([i, c], [(c.var // 2) % 3], [3], {})


def test_fused_axes():
    i, j, k = _axis("i", 3), _axis("j", 4), _axis("k", 5)
    found = _check([i, j, k], [i.var * 4 + j.var], [12], {})
    assert [int(a.extent.value) for a in found.axes] == [12, 5]
    _check([i, j, k], [k.var * 3 + i.var, j.var], [15, 4], {}, complete=True)


def test_rows_of_another_reshape():
    p, q = _axis("p", 6), _axis("q", 4)
    found = _check([p, q], [(p.var * 4 + q.var) // 3], [8], {})
    assert [int(a.extent.value) for a in found.axes] == [8, 3]


@pytest.mark.parametrize("sizes", [(1, 1), (3, 5), (4, 2)])
def test_symbolic_axes(sizes):
    sizes = dict(zip((N, S), sizes, strict=True))
    i, j, k = _axis("i", N), _axis("j", S), _axis("k", 6)
    _check([i, j, k], [j.var, i.var], [S, N], sizes)
    _check([i, j, k], [i.var * S + j.var], [N * S], sizes)
    _check([i, j, k], [k.var // 3, i.var], [2, N], sizes)


@pytest.mark.parametrize(
    ("rows", "extents"),
    [
        (lambda i, j: [i * 2], [16]),  # every other row
        (lambda i, j: [i + j], [8]),  # several points a row, not a grid of them
        (lambda i, j: [i * 2 + j], [16]),  # rows that overlap
        (lambda i, j: [i + 1], [8]),  # beyond the end
        (lambda i, j: [7 - i], [8]),  # right, but TVM's inverse does not turn round
        (lambda i, j: [i], [7]),  # of another extent
        (lambda i, j: [i, i], [8, 8]),  # the diagonal
        (lambda i, j: [i // 3], [3]),  # rows of unequal lengths
        (lambda i, j: [tirx.IntImm("int64", 0)], [1]),  # nothing tells the row
    ],
)
def test_what_is_no_grid_of_rows_is_refused(rows, extents):
    i, j = _axis("i", 8), _axis("j", 4)
    exprs = rows(i.var, j.var)
    found = reindex([i, j], exprs, [tirx.IntImm("int64", e) for e in extents])
    if found is not None:  # allowed if it is right
        _check([i, j], exprs, extents, {})


def test_complete_rows_leave_nothing():
    i, j = _axis("i", 8), _axis("j", 4)
    assert reindex([i, j], [i.var], [i.extent], complete=True) is None
    assert reindex([i], [i.var // 2], [tirx.IntImm("int64", 4)], complete=True) is None


@pytest.mark.slow_beyond(26)
@pytest.mark.parametrize("seed", range(40))
def test_simplified_indices_keep_their_values(seed):
    rng = np.random.default_rng(seed)
    axes = [_axis("i", N), _axis("j", S), _axis("k", int(rng.integers(2, 7)))]
    factors = [S, N, N * S, *(tirx.IntImm("int64", int(f)) for f in rng.integers(2, 9, 3))]

    def draw(depth):
        if depth == 0:
            return axes[rng.integers(3)].var
        kind = rng.integers(4)
        factor = factors[rng.integers(len(factors))]
        if kind == 0:
            return draw(depth - 1) * factor + draw(depth - 1)
        if kind == 1:
            return tirx.FloorDiv(draw(depth - 1), factor)
        if kind == 2:
            return tirx.FloorMod(draw(depth - 1), factor)
        return draw(depth - 1) * factor + tirx.IntImm("int64", int(rng.integers(0, 3)))

    domain = Domain(axes)
    for _ in range(10):
        index = draw(4)
        simple = domain.simplify(index)
        for sizes in ({N: 1, S: 1}, {N: 2, S: 3}, {N: 5, S: 2}):
            for point in _points(axes, sizes):
                assert _number(index, point) == _number(simple, point), (index, simple)


def test_division_by_symbolic_sizes():
    i, j = ir.Var("i", "int64"), ir.Var("j", "int64")
    polynomials = Polynomials({i: N, j: S})

    def divided(a, b):
        return polynomials.divide(a, b)

    quotient, rest = divided(i * S + j, S)
    assert (quotient.same_as(i), rest.same_as(j)) == (True, True)
    quotient, rest = divided(i * S * 24 + j * 24 + 5, S * 24)
    assert quotient.same_as(i)
    assert tvm_ffi.structural_equal(rest, j * 24 + 5)
    assert divided(i * S + j + 1, S) is None  # may carry
    assert divided(i * S - j, S) is None
    assert divided(i * N + j, N) is None  # j is below s, not below n
    assert divided(i * S + j, S - 1) is None
    quotient, rest = divided(i * (S + N) + j, S + N)
    assert (quotient.same_as(i), rest.same_as(j)) == (True, True)
