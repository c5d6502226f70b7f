"""Expressions that occur twice: copied, and bound to a variable each."""

import tvm_ffi
from tvm import ir, tirx
from tvm.ir.transform import PassContext

from .._tvm.ir.pass_context import copied
from .._tvm.ir.structural import structural_map, structural_walk
from ..core.tir.expressions import has_load
from ..core.tir.loops import substitute

# Disable TVM 0.27's common subexpression elimination: its later passes do not see through it.
#
# An index of shared memory that is bound to a variable no longer shows that each thread has an
# element of its own: a barrier is asked for, a needless one, or an error where it cannot stand. And
# comparisons of vectors cannot be bound. LLVM and the CUDA and ROCm compilers find the same common
# subexpressions afterwards.


OPTION = "tirx.disable_cse_tir"


def without_cse(context: PassContext) -> PassContext:
    """Make a copy of a context in which lowering leaves repeated expressions as they are."""
    return copied(context, {OPTION: True}, context.instruments)


@tirx.transform.prim_func_pass(opt_level=0, name="BindOnce")
class BindOnce:
    """Rename the variables that copies of an expression bind, so that each is bound once.

    A loop and its remainder compute the same expression at other indices. TVM 0.27's simplifier
    keeps what a variable is bound to where that reads no buffer, and stops at a second value
    ("Trying to update var 'x' with a different value").
    """

    def transform_function(
        self, func: tirx.PrimFunc, _mod: ir.IRModule, _ctx: PassContext
    ) -> tirx.PrimFunc:
        """Rename in one function, where a variable has several values."""
        values: dict[ir.Var, set[tvm_ffi.StructuralKey]] = {}

        def visit(let: tirx.Let) -> None:
            if not has_load(let.value):
                values.setdefault(let.var, set()).add(tvm_ffi.StructuralKey(let.value))

        structural_walk(func.body, (tirx.Let, visit))
        if all(len(found) == 1 for found in values.values()):
            return func

        def renamed(let: tirx.Let) -> ir.Expr:
            var = tirx.Var(let.var.name, let.var.ty.dtype)
            return tirx.Let(var, let.value, substitute(let.body, {let.var: var}))

        return func.with_body(structural_map(func.body, (tirx.Let, renamed), order="post"))
