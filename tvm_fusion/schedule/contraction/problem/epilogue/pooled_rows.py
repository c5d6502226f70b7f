"""Rows of a product that are pooled: the pixels of a window are adjacent rows, or a rectangle's.

    pooled[n, y, x, k] = max over (i, j) of f(sum[(n, y, x, i, j), k])       rows of a window
    pooled[n, y, x, k] = f(max over (i, j) of sum[n, 2 y + i, 2 x + j, k])   pixels as they are

Windows do not overlap (:mod:`..pool`), so that a row is of one window, and rows of a tile are whole
windows where the pixels of one divide sixteen. What never falls as its operand grows, as a bias,
ReLU and rounding do not, comes behind a maximum: bit for bit the same.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tvm import ir, tirx

from .....core.contract.template import Refusal
from .....core.tir.expressions import loads, variables
from .....core.tir.loops import constant, index, substitute
from .....program.program import Program
from .....program.stage import Axis, Stage
from ..pool import Pool, pool_of
from ..results import Result
from ..sum_of_products import SumOfProducts, analyse

ROWS = 16  # of a tile's fragment, in all of which windows are whole


@dataclass(frozen=True, eq=False)
class PooledRows:
    """What adjacent rows of a product are reduced by."""

    places: tuple[Axis, ...]  # within a window: the last axes of M
    initial: ir.Expr  # the first value of ``running``
    update: ir.Expr  # the next one, over the product's axes, ``running`` and ``total``
    # Stand for what is reduced so far, and for a sum.
    running: ir.Var
    total: ir.Var

    @property
    def size(self) -> int:
        """Rows of a window."""
        return math.prod(constant(a.extent) or 1 for a in self.places)


@dataclass(frozen=True)
class PooledPixels:
    """Windows along axes of pixels, of whose sums the largest is taken."""

    # Axes of M, and how many pixels of each are in a window.
    windows: tuple[tuple[ir.Var, int], ...]

    @property
    def size(self) -> int:
        """Pixels of a window."""
        return math.prod(size for _, size in self.windows)

    def window(self, axes: Sequence[Axis]) -> tuple[int, ...]:
        """Count the pixels of a window along axes, from the first that has several."""
        found = dict(self.windows)
        return tuple(itertools.dropwhile(lambda n: n == 1, (found.get(a.var, 1) for a in axes)))


@dataclass(frozen=True, eq=False)
class PooledProduct:
    """A convolution whose sums are pooled, its rows in either order."""

    by_rows: SumOfProducts  # the pixels of a window are adjacent rows
    # Rows are pixels in their order; ``None`` of what is no maximum.
    by_pixels: SumOfProducts | None


def pooled_product(program: Program, stages: Sequence[Stage]) -> PooledProduct | Refusal:
    """Read a program of two reductions as a convolution whose sums are pooled.

    Parameters
    ----------
    stages
        The program's, without internal maps.
    """
    conv, stage = (s for s in stages if not s.is_map)
    found = pool_of(stages, conv, stage, program.outputs)
    if isinstance(found, Refusal):
        return found
    pool, conv, pooled, results = found
    before = tuple(s for s in program.stages if s.is_map and conv.reads & set(s.targets))
    contraction = analyse(replace(program, stages=(*before, conv)), [conv])
    if isinstance(contraction, Refusal):
        return contraction
    sides, windows = (contraction.left, contraction.right), pool.windows
    images = [x for x in sides if variables(x) & windows.keys()]
    size = math.prod(w.size for w in windows.values())
    if len(images) != 1 or ROWS % size:
        return _refusal(f"windows have {size} pixels, which do not divide {ROWS}")
    if any(constant(a.extent) is None for a in conv.axes):
        return _refusal("extents are symbolic")
    if {x.source for x in loads(pool.update)} & {x.source for e in sides for x in loads(e)}:
        return _refusal("it reads an operand of the convolution, too")
    of_image = variables(images[0])
    rows = [a for a in conv.axes if a.var in of_image]
    columns = [a for a in conv.axes if a.var not in of_image]
    conv = replace(conv, axes=(*rows, *columns))
    contraction = replace(contraction, stage=conv, total=pooled, results=results)
    behind = _behind_maximum(pool)
    if behind is None:
        own = PooledRows(_places(pool), pool.initial, pool.update, pool.running, pool.total)
        return PooledProduct(_by_rows(contraction, pool, own), None)
    running, total = (tirx.Var(n, contraction.dtype) for n in ("running", "total"))
    least = tirx.min_value(contraction.dtype)
    own = PooledRows(_places(pool), least, tirx.Max(running, total), running, total)
    moved = tuple(_with_value(r, pooled, behind) for r in results)
    contraction = replace(contraction, total=pool.total, results=moved)
    return PooledProduct(_by_rows(contraction, pool, own), _by_pixels(contraction, pool))


def _refusal(why: str) -> Refusal:
    return Refusal("pooling_windows", f"Windows of the pooling are no rows of a tile: {why}.")


def _places(pool: Pool) -> tuple[Axis, ...]:
    return tuple(w.place for w in pool.windows.values() if w.size > 1)


def _with_value(result: Result, pooled: ir.Var, value: ir.Expr) -> Result:
    return replace(result, value=substitute(result.value, {pooled: value}))


def _by_rows(contraction: SumOfProducts, pool: Pool, own: PooledRows) -> SumOfProducts:
    """Order rows by windows."""
    windows, conv = pool.windows, contraction.stage
    moved: dict[ir.Var, ir.Expr] = {
        axis: window.pixel.var * window.place.extent + window.place.var
        for axis, window in windows.items()
    }
    rows = [a for a in conv.axes if a.var in variables(_image(contraction, pool))]
    columns = [a for a in conv.axes if a not in rows]
    pixels = [windows[a.var].pixel if a.var in windows else a for a in rows]
    whole = replace(
        conv,
        axes=(*pixels, *(w.place for w in windows.values()), *columns),
        indices=tuple(tuple(substitute(i, moved) for i in x) for x in conv.indices),
        values=tuple(substitute(v, moved) for v in conv.values),
    )
    left, right = (substitute(x, moved) for x in (contraction.left, contraction.right))
    return replace(contraction, stage=whole, left=left, right=right, pool=own)


def _image(contraction: SumOfProducts, pool: Pool) -> ir.Expr:
    sides = contraction.left, contraction.right
    return next(x for x in sides if variables(x) & pool.windows.keys())


def _by_pixels(contraction: SumOfProducts, pool: Pool) -> SumOfProducts | None:
    """Let results find their window by a pixel of it; ``None`` where pixels are left over."""
    places: dict[ir.Var, ir.Expr] = {}
    extents = {a.var: constant(a.extent) for a in contraction.stage.axes}
    for axis, window in pool.windows.items():
        if extents[axis] != (constant(window.pixel.extent) or 0) * window.size:
            return None
        places[window.pixel.var] = tirx.floordiv(axis, index(window.size))
    results = tuple(
        replace(
            r,
            indices=tuple(substitute(i, places) for i in r.indices),
            value=substitute(r.value, places),
            condition=None if r.condition is None else substitute(r.condition, places),
        )
        for r in contraction.results
    )
    sizes = tuple((axis, window.size) for axis, window in pool.windows.items())
    return replace(contraction, results=results, pool=PooledPixels(sizes))


def _behind_maximum(pool: Pool) -> ir.Expr | None:
    """Return what a maximum takes of each sum, if it is that of the largest; else ``None``."""
    update = pool.update
    if not isinstance(update, tirx.Max):
        return None
    value = next((x for x in (update.a, update.b) if not x.same_as(pool.running)), update)
    places = {w.place.var for w in pool.windows.values()}
    is_maximum = pool.running not in variables(value) and not places & variables(value)
    return value if is_maximum and _never_falls(value, pool.total) else None


def _never_falls(value: ir.Expr, total: ir.Var) -> bool:
    """Whether a value never falls as a sum grows, as computed, roundings included."""
    if value.same_as(total):
        return True
    if isinstance(value, tirx.Cast):
        return str(value.value.ty.dtype).startswith(("float", "bfloat")) and _never_falls(
            value.value, total
        )
    if isinstance(value, tirx.Sub):
        return total not in variables(value.b) and _never_falls(value.a, total)
    if isinstance(value, tirx.Add | tirx.Max | tirx.Min | tirx.Mul):
        inner = [x for x in (value.a, value.b) if total in variables(x)]
        other = value.b if inner and inner[0].same_as(value.a) else value.a
        if isinstance(value, tirx.Mul):
            is_positive = isinstance(other, tirx.FloatImm) and float(other.value) > 0
            return len(inner) == 1 and is_positive and _never_falls(inner[0], total)
        return len(inner) == 1 and _never_falls(inner[0], total)
    return False
