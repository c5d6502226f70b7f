"""A choice between two tensors by a boolean one.

TOPI casts the condition to int64 and compares it with zero. Written into one another, as masks of
masks are, such comparisons take TVM's simplifier ten times longer a level, minutes from seven on.
"""

from __future__ import annotations

from tvm import relax, te, tirx

from .broadcast import elementwise


def where(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Compute ``a if condition else b``, all three broadcast to one another."""

    def compute(*tensors: te.Tensor) -> te.Tensor:
        return elementwise(tirx.Select, tensors, "T_where")

    return bb.call_te(compute, *call.args, primfunc_name_hint="where")
