"""The logarithm of a sum of two exponentials, without computing either: they overflow from 89 on.

TOPI's is ``log(exp(a) + exp(b))``: infinite for ``a = 90`` in float32, minus infinity for -110.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvm import ir, relax, te, tirx


def log_add_exp(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """``max(a, b) + log(1 + exp(-|a - b|))``; ``a + log 2`` where both are the same, infinities."""

    def compute(a: te.Tensor, b: te.Tensor) -> te.Tensor:
        rank = max(len(a.shape), len(b.shape))
        padded = [[None] * (rank - len(t.shape)) + list(t.shape) for t in (a, b)]
        shape = [
            y if x is None or (y is not None and _is_one(x)) else x
            for x, y in zip(*padded, strict=True)
        ]

        def value(*index: ir.Expr) -> ir.Expr:
            x, y = _element(a, index), _element(b, index)
            dtype = str(a.dtype)
            smaller = tirx.exp(tirx.const(0, dtype) - tirx.abs(x - y))
            apart = tirx.max(x, y) + tirx.log(tirx.const(1, dtype) + smaller)
            return tirx.Select(x.equal(y), x + tirx.const(math.log(2), dtype), apart)

        return te.compute(shape, value, name="T_log_add_exp")

    return bb.call_te(compute, *call.args, primfunc_name_hint="log_add_exp")


def _element(tensor: te.Tensor, index: Sequence[ir.Expr]) -> ir.Expr:
    own = index[len(index) - len(tensor.shape) :]
    return tensor(*(0 if _is_one(d) else i for i, d in zip(own, tensor.shape, strict=True)))


def _is_one(extent: ir.Expr) -> bool:
    return isinstance(extent, tirx.IntImm) and int(extent) == 1
