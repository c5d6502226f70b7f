"""Loops that never run: a GPU has no launch of no blocks."""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.ir.transform import PassContext

from .._tvm.buffer import declare
from .._tvm.structural import structural_map


@tirx.transform.prim_func_pass(opt_level=0, name="DropEmptyLoops")
class DropEmptyLoops:
    """Take out loops of a static extent of zero: those of a tensor without elements.

    TVM 0.27 drops the thread axis of such a loop: its body runs in one block all the same, and
    writes to a tensor that has no memory.
    """

    def transform_function(
        self, func: tirx.PrimFunc, _mod: ir.IRModule, _ctx: PassContext
    ) -> tirx.PrimFunc:
        """Put a statement without effect in place of each."""

        def change(loop: tirx.For) -> tirx.Stmt:
            is_empty = isinstance(loop.extent, tirx.IntImm) and int(loop.extent) <= 0
            return tirx.Evaluate(tirx.const(0)) if is_empty else loop

        body = structural_map(func.body, (tirx.For, change), order="post")
        return func if body.same_as(func.body) else func.with_body(body)


# Extents of buffers that divide by a symbolic extent, which may be zero when a kernel runs.
#
# TVM 0.27's CompactBufferAllocation shrinks a buffer to the region that is accessed. Of a buffer
# that is walked by one loop over all elements (``i // n``, ``i % n``) the region's bounds divide by
# ``n``. They are computed before the loops, even where those have no trips: the process dies of
# SIGFPE.
_DIVISIONS = (tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod)


@tirx.transform.prim_func_pass(opt_level=0, name="DivideByNoZeroExtent")
class DivideByNoZeroExtent:
    """Divide by at least one in the extents of what a lowered function allocates."""

    def transform_function(
        self, func: tirx.PrimFunc, _mod: ir.IRModule, _ctx: PassContext
    ) -> tirx.PrimFunc:
        """Declare the buffers concerned anew."""
        allocs: list[tirx.AllocBuffer] = []
        tvm_ffi.structural_walk(func.body, (tirx.AllocBuffer, allocs.append))
        instead: dict[ir.Var, ir.Var] = {}
        for buffer in (alloc.buffer for alloc in allocs):
            shape = [_divided_safely(extent) for extent in buffer.ty.shape]
            if not all(a.same_as(b) for a, b in zip(shape, buffer.ty.shape, strict=True)):
                dtype = str(buffer.ty.dtype)
                instead[buffer] = declare(shape, dtype, buffer.name, buffer.scope())
        if not instead:
            return func
        exchange = (ir.Var, lambda var: instead.get(var, var))
        return func.with_body(tvm_ffi.structural_map(func.body, exchange, order="post"))


def _divided_safely(extent: ir.Expr) -> ir.Expr:
    def change(node: Any) -> Any:
        if isinstance(node.b, tirx.IntImm):
            return node
        return type(node)(node.a, tirx.max(node.b, tirx.const(1, str(node.b.ty.dtype))))

    return tvm_ffi.structural_map(extent, [(t, change) for t in _DIVISIONS], order="post")
