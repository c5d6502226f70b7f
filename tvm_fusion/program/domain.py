"""Proofs about index arithmetic over axes whose ranges are known."""

from collections.abc import Iterable, Sequence
from functools import cached_property

import tvm
from tvm import ir, sym, tirx
from tvm.sym.iter_affine_map import IterMapLevel

from .._tvm.ir.simplifier import hide_from_simplifier
from .._tvm.ir.structural import structural_map, structural_walk
from ..core.tir.expressions import has_division, load, map_loads, size, variables
from ..core.tir.integers import LARGEST_EXTENT, unwrapped
from ..core.tir.polynomial import Polynomials
from .stage import Axis

_LARGEST_DIM = 2**31
_DIVISIONS = (tirx.FloorDiv, tirx.FloorMod)


class Domain:
    """Points of some axes, each from 0 to its extent; symbolic extents are at least 1.

    With an extent of 0 there is no point, so that whatever is claimed about all points holds.
    """

    def __init__(self, axes: Iterable[Axis]) -> None:
        self.axes = tuple(axes)

    @cached_property
    def ranges(self) -> dict[ir.Var, ir.Range]:
        """Range of each axis, as TVM's detection of iterator maps takes it."""
        return {a.var: ir.Range.from_min_extent(_zero(a.var), a.extent) for a in self.axes}

    @cached_property
    def _bounds(self) -> dict[ir.Var, tuple[int, int]]:
        """Least and largest values, as exact numbers."""
        return {a.var: (0, (a.size or LARGEST_EXTENT) - 1) for a in self.axes}

    @cached_property
    def _analyzer(self) -> sym.Analyzer:
        analyzer = sym.Analyzer()
        symbols = {v for a in self.axes for v in variables(a.extent)}
        for symbol in symbols:
            one = tirx.IntImm(symbol.ty.dtype, 1)
            analyzer.bind(symbol, ir.Range.from_min_extent(one, _LARGEST_DIM))
        for var, range_ in self.ranges.items():
            analyzer.bind(var, range_)
        return analyzer

    def simplify(self, expr: ir.Expr) -> ir.Expr:
        """Simplify a value with all indices in it."""
        if isinstance(expr, ir.Var | tirx.IntImm):
            return expr
        if "float" in str(expr.ty.dtype):
            expr = hide_from_simplifier(expr)
        expr = unwrapped(expr, self._bounds)
        expr = self._analyzer.simplify(expr)
        if isinstance(expr, ir.TensorLoad):
            return self._simplify_load(expr)
        if expr.ty.dtype == "int64" and has_division(expr):
            expr = self._normalise(expr)
        return map_loads(expr, self._simplify_load)

    def positions(self, expr: ir.Expr) -> ir.Expr:
        """Turn a model's arithmetic of positions into that of indices where it cannot overflow."""
        return unwrapped(expr, self._bounds)

    def equal(self, a: ir.Expr, b: ir.Expr) -> bool:
        """Whether two expressions are proved equal at all points."""
        if a.same_as(b):
            return True
        if isinstance(a, tirx.IntImm) and isinstance(b, tirx.IntImm):
            return int(a.value) == int(b.value)
        if isinstance(a, ir.Var) and isinstance(b, ir.Var):
            # Two axes are never equal throughout, and nothing relates two symbols.
            return False
        if self._analyzer.can_prove_equal(a, b):
            return True
        if not has_division(a) and not has_division(b):
            return False
        return self._analyzer.can_prove_equal(self._normalise(a), self._normalise(b))

    def iter_map(
        self, indices: Sequence[ir.Expr], level: IterMapLevel
    ) -> tuple[sym.iter_affine_map.IterSumExpr, ...] | None:
        """Tell indices as sums of splits of the axes; ``None`` where TVM cannot."""
        try:
            found = sym.detect_iter_map(
                list(indices), self.ranges, True, level, True, self._analyzer
            )
        except tvm.error.InternalError:  # it gives up on some index arithmetic this way
            return None
        padded = found.padding_predicate
        if not found.indices or not (isinstance(padded, tirx.IntImm) and not padded.value):
            return None
        sums = tuple(found.indices)
        return sums if all(_is_forward(s) for s in sums) else None

    def _simplify_load(self, found: ir.TensorLoad) -> ir.TensorLoad:
        if not any(has_division(i) for i in found.indices):
            return found
        return load(found.source, [self._normalise(i) for i in found.indices])

    def _normalise(self, index: ir.Expr) -> ir.Expr:
        """Resolve chains of divisions, which the analyzer cannot; keep the shorter form."""
        index = self._divide_by_sizes(index)
        if not has_division(index):
            return index
        sums = self.iter_map([index], IterMapLevel.NoCheck)
        if sums is None:
            return index
        normal = self._divide_by_sizes(
            self._analyzer.simplify(sym.normalize_iter_map_to_expr(sums[0]))
        )
        return normal if size(normal) < size(index) else index

    def _divide_by_sizes(self, index: ir.Expr) -> ir.Expr:
        """Resolve divisions by symbolic extents."""
        found: list[ir.Expr] = []
        structural_walk(index, (_DIVISIONS, found.append))
        if all(isinstance(division.b, tirx.IntImm) for division in found):
            return index
        polynomials = Polynomials({a.var: a.extent for a in self.axes})

        def divide(division: ir.Expr) -> ir.Expr:
            if isinstance(division.b, tirx.IntImm):
                return division
            both = polynomials.divide(division.a, division.b)
            if both is None:
                return division
            return both[0] if isinstance(division, tirx.FloorDiv) else both[1]

        divided = structural_map(index, (_DIVISIONS, divide), order="post")
        return divided if divided.same_as(index) else self._analyzer.simplify(divided)


def _is_forward(total: sym.iter_affine_map.IterSumExpr) -> bool:
    """Whether no axis is split into negative parts.

    TVM 0.27 divides the negation of an axis by a positive number as the axis by a negative one, and
    rounds wrongly there: ``(19 - i) // 4`` becomes ``i // -4 + 4``.
    """
    for split in total.args:
        for part in (split.lower_factor, split.extent):
            if isinstance(part, tirx.IntImm) and int(part.value) < 0:
                return False
        inner = split.source.source
        if isinstance(inner, sym.iter_affine_map.IterSumExpr) and not _is_forward(inner):
            return False
    return True


def _zero(var: ir.Var) -> ir.Expr:
    return tirx.IntImm(var.ty.dtype, 0)
