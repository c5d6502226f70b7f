"""Loop invariants: values that stay the same in a loop, computed once before it."""

from __future__ import annotations

from collections.abc import Callable

import tvm_ffi
from tvm import ir, tirx

from ...._tvm.ir.structural import structural_map
from ....core.tir.expressions import loads

_Linear = tuple[ir.Expr, ir.Expr | None, ir.Expr | None]


class Invariants:
    """Takes values that do not change in a loop out of its expressions.

    Parameters
    ----------
    changes
        Whether a load reads another element in every step of the loop.
    is_linear
        Whether ``(x * a - b) * c + d`` may become ``x * (a * c) + (d - b * c)``: that is off by a
        rounding of a product in float32, which results of half types do not show.

    Attributes
    ----------
    values, names : list
        What was taken out, and the variables in its place.
    """

    def __init__(self, changes: Callable[[ir.TensorLoad], bool], is_linear: bool) -> None:
        self._changes, self._is_linear = changes, is_linear
        self.values: list[ir.Expr] = []
        self.names: list[ir.Var] = []

    def take_out(self, expr: ir.Expr) -> ir.Expr:
        """Write an expression with variables in the place of its invariants."""

        def change(node: ir.Expr) -> ir.Expr:
            is_value = isinstance(node.ty, ir.PrimType)
            if not is_value or not str(node.ty.dtype).startswith(("float", "bfloat")):
                return node  # buffers and positions
            if not self._varies(node):
                return self._named(node)
            if self._is_linear and isinstance(node, tirx.Add | tirx.Sub | tirx.Mul):
                varying, scale, shift = self._linear(node)
                value = varying if scale is None else varying * self._named(scale)
                return value if shift is None else value + self._named(shift)
            return node

        return structural_map(expr, (ir.Expr, change), order="pre")

    def _varies(self, expr: ir.Expr) -> bool:
        return any(map(self._changes, loads(expr)))

    def _named(self, expr: ir.Expr) -> ir.Expr:
        """Return an invariant's variable; constants and variables that stand for one as is."""
        if isinstance(expr, tirx.FloatImm) or expr in self.names:
            return expr
        for value, name in zip(self.values, self.names, strict=True):
            if tvm_ffi.structural_equal(value, expr):
                return name
        self.values.append(expr)
        self.names.append(tirx.Var(f"invariant{len(self.names)}", str(expr.ty.dtype)))
        return self.names[-1]

    def _linear(self, expr: ir.Expr) -> _Linear:
        """Write an expression as ``varying * scale + shift``."""
        if not isinstance(expr, tirx.Add | tirx.Sub | tirx.Mul):
            return expr, None, None
        is_first = self._varies(expr.a)
        if is_first and self._varies(expr.b):
            return expr, None, None
        varying, fixed = (expr.a, expr.b) if is_first else (expr.b, expr.a)
        inner, scale, shift = self._linear(varying)
        if isinstance(expr, tirx.Mul):
            scale = fixed if scale is None else scale * fixed
            return inner, scale, None if shift is None else shift * fixed
        if isinstance(expr, tirx.Add):
            return inner, scale, fixed if shift is None else shift + fixed
        if is_first:
            return inner, scale, (tirx.const(0, fixed.ty.dtype) if shift is None else shift) - fixed
        scale = tirx.const(-1, fixed.ty.dtype) if scale is None else -scale
        return inner, scale, fixed if shift is None else fixed - shift
