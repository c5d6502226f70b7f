"""Simplify indices and conditions of a tile by the ranges of its loops."""

from collections.abc import Sequence

import tvm_ffi
from tvm import ir, sym, tirx

from ...core.tir.expressions import call_name, load
from ...core.tir.loops import index
from ...program.lane_conditions import decide_for_lanes
from ...program.stage import Axis


class Ranges:
    """Ranges of loop variables, by which indices are simplified."""

    def __init__(self) -> None:
        self._analyzer = sym.Analyzer()

    def bind(self, var: ir.Expr, extent: ir.Expr | int) -> None:
        """Bind a loop variable; the constant of a loop of one trip needs no binding."""
        if isinstance(var, ir.Var):
            self._analyzer.bind(var, ir.Range.from_min_extent(index(0), index(extent)))

    def index(self, position: ir.Expr) -> ir.Expr:
        """Simplify an index."""
        return self._analyzer.simplify(position)

    def indices(self, positions: Sequence[ir.Expr]) -> list[ir.Expr]:
        """Simplify indices."""
        return [self.index(i) for i in positions]

    def holds(self, condition: ir.Expr) -> bool | None:
        """Whether a condition always or never holds; ``None`` where it may do either."""
        if self._analyzer.can_prove(condition):
            return True
        return False if self._analyzer.can_prove(tirx.Not(condition)) else None

    def value(self, expr: ir.Expr) -> ir.Expr:
        """Simplify the indices of loads, and take choices whose condition is known.

        Arithmetic stays: TVM's simplifier does not honour NaN.
        """

        def choose(call: ir.Call) -> ir.Expr:
            if call_name(call) != "if_then_else":
                return call
            known = self.holds(call.args[0])
            return call if known is None else call.args[1] if known else call.args[2]

        def move(found: ir.TensorLoad) -> ir.Expr:
            return load(found.source, self.indices(found.indices))

        callbacks = [(ir.Call, choose), (ir.TensorLoad, move)]
        return tvm_ffi.structural_map(expr, callbacks, order="post")

    def without_lane(self, expr: ir.Expr, lane: ir.Var, size: int) -> ir.Expr:
        """Take a lane out of the comparisons that are alike for all lanes of a vector."""
        return decide_for_lanes(expr, [Axis(lane, index(size))], self._analyzer)

    def all_indices(self, expr: ir.Expr) -> ir.Expr:
        """Simplify the indices of loads and the conditions of choices."""

        def choose(call: ir.Call) -> ir.Expr:
            if call_name(call) != "if_then_else":
                return call
            return tirx.if_then_else(self.index(call.args[0]), *call.args[1:])

        def move(found: ir.TensorLoad) -> ir.Expr:
            return load(found.source, self.indices(found.indices))

        callbacks = [(ir.Call, choose), (ir.TensorLoad, move)]
        return tvm_ffi.structural_map(expr, callbacks, order="post")
