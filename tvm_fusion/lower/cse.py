"""Disable TVM 0.27's common subexpression elimination: its later passes do not see through it.

An index of shared memory that is bound to a variable no longer shows that each thread has an
element of its own: a barrier is asked for, a needless one, or an error where it cannot stand. And
comparisons of vectors cannot be bound. LLVM and the CUDA and ROCm compilers find the same common
subexpressions afterwards.
"""

from __future__ import annotations

from tvm.ir.transform import PassContext

from .._tvm.ir.pass_context import copied

OPTION = "tirx.disable_cse_tir"


def without_cse(context: PassContext) -> PassContext:
    """Make a copy of a context in which lowering leaves repeated expressions as they are."""
    return copied(context, {OPTION: True}, context.instruments)
