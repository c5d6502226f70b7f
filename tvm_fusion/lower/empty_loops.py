"""Loops that never run: a GPU has no launch of no blocks."""

from __future__ import annotations

from tvm import ir, tirx
from tvm.ir.transform import PassContext

from .._tvm.ir.structural import structural_map


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
