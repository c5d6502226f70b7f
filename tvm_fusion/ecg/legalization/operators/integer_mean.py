"""Means of integers over symbolic extents.

TOPI's divides by a count of 64 bits, so that its result has another type than the operator's, and
by zero where an extent is zero at run time, which ends the process.
"""

from __future__ import annotations

from tvm import ir, relax, te, tirx, topi

NAME = "relax.mean"


def mean(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Divide the sum by the number of its terms, at least 1; the quotient is truncated."""
    x, attrs, dtype = call.args[0], call.attrs, str(call.ty.dtype.dtype)
    stock = ir.Op.get(NAME).get_attr("FLegalize")
    if "int" not in dtype or not isinstance(x.ty.shape, relax.ShapeExpr):
        return stock(bb, call)
    rank = x.ty.ndim
    axes = range(rank) if attrs.axis is None else [int(axis) % rank for axis in attrs.axis]
    if all(isinstance(x.ty.shape.values[axis], tirx.IntImm) for axis in axes):
        return stock(bb, call)

    def compute(data: te.Tensor) -> te.Tensor:
        total = topi.sum(data, list(axes), bool(attrs.keepdims))
        count = tirx.const(1, "int64")
        for axis in axes:
            count = count * data.shape[axis]
        divisor = tirx.max(count, tirx.const(1, "int64")).astype(dtype)
        return te.compute(total.shape, lambda *i: tirx.truncdiv(total(*i), divisor), name="mean")

    return bb.call_te(compute, x, primfunc_name_hint="mean")
