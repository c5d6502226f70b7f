"""Scopes that TOPI marks for nobody."""

from __future__ import annotations

from tvm import ir, tirx
from tvm.ir.transform import PassContext

from .._tvm.ir.structural import structural_map


@tirx.transform.prim_func_pass(opt_level=0, name="DropScopePragmas")
class DropScopePragmas:
    """Take out the mark ``pragma_scope`` of TOPI's scans, sorts and scatters.

    No pass reads it, and LLVM's code generator of TVM 0.27 warns of an unknown pragma for each.
    """

    def transform_function(
        self, func: tirx.PrimFunc, _mod: ir.IRModule, _ctx: PassContext
    ) -> tirx.PrimFunc:
        """Put the body in place of each."""

        def change(mark: tirx.AttrStmt) -> tirx.Stmt:
            return mark.body if mark.attr_key == "pragma_scope" else mark

        body = structural_map(func.body, (tirx.AttrStmt, change), order="post")
        return func if body.same_as(func.body) else func.with_body(body)
