"""Dequantization of weights in float32, in the main loop of a skinny GEMM.

Half-type arithmetic on integers, such as ``(half(q) - 8) * scale``, is done in float32. Factors
that all k of a tile share, such as a group's scale, multiply the tile's sum, not each weight.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from operator import mul

import tvm_ffi
from tvm import ir, tirx

from ...core.expressions import call_name
from ...core.loops import find
from .unpack_int import unpack_to_float

FLOATS = ("float16", "bfloat16", "float32")
Word = Callable[[ir.Var], "tuple[ir.Expr, int] | None"]


def has_integers(expr: ir.Expr) -> bool:
    """Whether an expression reads integers: quantized weights."""
    kinds = {str(x.ty.dtype) for x in find(expr, ir.TensorLoad)}
    return any(kind.startswith(("int", "uint")) for kind in kinds)


def widened(expr: ir.Expr, word: Word) -> ir.Expr:
    """Compute sums, differences and products of half types in float32, unpacking integers.

    Parameters
    ----------
    expr : Expr
        Over variables that stand for elements.
    word : callable
        See :func:`.unpack_int.unpack_to_float`.
    """
    if isinstance(expr, (tirx.Add, tirx.Sub, tirx.Mul)) and str(expr.ty.dtype) in FLOATS:
        return _joined(type(expr)(widened(expr.a, word), widened(expr.b, word)))
    if isinstance(expr, tirx.FloatImm):
        return tirx.const(float(expr.value), "float32")
    if isinstance(expr, tirx.Cast) and str(expr.ty.dtype) in FLOATS:
        if str(expr.value.ty.dtype) in FLOATS:
            return widened(expr.value, word)
        made = unpack_to_float(expr.value, word)
        return tirx.Cast("float32", expr.value) if made is None else made
    return expr if str(expr.ty.dtype) == "float32" else tirx.Cast("float32", expr)


def _joined(expr: ir.Expr) -> ir.Expr:
    """Subtract a zero point and the offset of unpacked bits at once."""
    if not isinstance(expr, tirx.Sub) or not isinstance(expr.a, tirx.Sub):
        return expr
    made, numbers = expr.a.a, (expr.a.b, expr.b)
    if call_name(made) != "reinterpret" or not all(isinstance(n, tirx.FloatImm) for n in numbers):
        return expr
    total = math.fsum(float(n.value) for n in numbers)
    is_exact = total.is_integer() and 0 <= total < 1 << 24
    return made - tirx.const(total, "float32") if is_exact else expr


def factors(expr: ir.Expr) -> list[ir.Expr]:
    """List the factors of a product."""
    return [*factors(expr.a), *factors(expr.b)] if isinstance(expr, tirx.Mul) else [expr]


def common_factors(terms: Sequence[ir.Expr]) -> tuple[list[ir.Expr], ir.Expr | None]:
    """Factor out what all products of one form have in common.

    Returns
    -------
    list of Expr
        The products without the common factors.
    Expr or None
        The product of the common factors; ``None`` without any.
    """
    split = [factors(term) for term in terms]
    first = split[0]
    is_common = [
        len(terms) > 1 and all(tvm_ffi.structural_equal(first[n], other[n]) for other in split)
        for n in range(len(first))
    ]
    if not any(is_common) or all(is_common):
        return list(terms), None
    left = [
        reduce(mul, [f for f, known in zip(own, is_common, strict=True) if not known])
        for own in split
    ]
    return left, reduce(mul, [f for f, known in zip(first, is_common, strict=True) if known])
