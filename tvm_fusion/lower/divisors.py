"""Divisions by symbolic extents, whose sign TVM does not know."""

from __future__ import annotations

from typing import Any

from tvm import ir, tirx
from tvm.ir.transform import PassContext

from .._tvm.ir.buffer import declare
from .._tvm.ir.structural import structural_map, structural_walk
from ..core.tir.integers import is_integer

_DIVISIONS = (tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod)


# TVM 0.27's CompactBufferAllocation bounds ``i // n`` by cases of the sign of ``n``. With a divisor
# ``(n + 127) // 128`` beside ``n`` there is a case, of a negative ``n``, in which that is zero: the
# simplifier fails on it ("Find divide by zero"). Maxima have no such cases.
@tirx.transform.prim_func_pass(opt_level=0, name="DivideByPositive")
class DivideByPositive:
    """Divide by at least one where a divisor is computed from a variable that divides as well.

    Such are the coordinates of a tile in an image of equal sides: ``i // ((n + 127) // 128) % n``.
    Other divisions stay as they are, which TVM simplifies better.
    """

    def transform_function(
        self, func: tirx.PrimFunc, _mod: ir.IRModule, _ctx: PassContext
    ) -> tirx.PrimFunc:
        """Change divisors that are no variables."""
        divisors: list[ir.Expr] = []
        structural_walk(func.body, (_DIVISIONS, lambda node: divisors.append(node.b)))
        alone = [divisor for divisor in divisors if isinstance(divisor, ir.Var)]

        def change(node: Any) -> Any:
            if isinstance(node.b, (ir.Var, tirx.IntImm)) or not is_integer(str(node.b.ty.dtype)):
                return node  # a floating point quotient is the model's, of any divisor
            used = tirx.analysis.undefined_vars(node.b)
            divides = any(var.same_as(other) for var in used for other in alone)
            return _by_one_at_least(node) if divides else node

        if not alone:
            return func
        body = structural_map(func.body, (_DIVISIONS, change))
        return func if body.same_as(func.body) else func.with_body(body)


# Extents of buffers that divide by a symbolic extent, which may be zero when a kernel runs.
#
# TVM 0.27's CompactBufferAllocation shrinks a buffer to the region that is accessed. Of a buffer
# that is walked by one loop over all elements (``i // n``, ``i % n``) the region's bounds divide by
# ``n``. They are computed before the loops, even where those have no trips: the process dies of
# SIGFPE.
@tirx.transform.prim_func_pass(opt_level=0, name="DivideByNoZeroExtent")
class DivideByNoZeroExtent:
    """Divide by at least one in the extents of what a lowered function allocates."""

    def transform_function(
        self, func: tirx.PrimFunc, _mod: ir.IRModule, _ctx: PassContext
    ) -> tirx.PrimFunc:
        """Declare the buffers concerned anew."""
        allocs: list[tirx.AllocBuffer] = []
        structural_walk(func.body, (tirx.AllocBuffer, allocs.append))
        instead: dict[ir.Var, ir.Var] = {}
        for buffer in (alloc.buffer for alloc in allocs):
            shape = [_divided_safely(extent) for extent in buffer.ty.shape]
            if not all(a.same_as(b) for a, b in zip(shape, buffer.ty.shape, strict=True)):
                dtype = str(buffer.ty.dtype)
                instead[buffer] = declare(shape, dtype, buffer.name, buffer.scope())
        if not instead:
            return func
        exchange = (ir.Var, lambda var: instead.get(var, var))
        return func.with_body(structural_map(func.body, exchange))


def _divided_safely(extent: ir.Expr) -> ir.Expr:
    def change(node: Any) -> Any:
        return node if isinstance(node.b, tirx.IntImm) else _by_one_at_least(node)

    return structural_map(extent, (_DIVISIONS, change))


def _by_one_at_least(node: Any) -> Any:
    return type(node)(node.a, tirx.max(node.b, tirx.const(1, str(node.b.ty.dtype))))
