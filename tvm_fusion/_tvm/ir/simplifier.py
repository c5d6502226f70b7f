"""Hide floating point arithmetic from TVM's simplifier, which applies integer rules to it.

``x * 0.0`` and ``0.0 / x`` become 0, and ``x / 0.0`` an error: zeros of products and quotients are
hidden from it; of sums that of ``x + 0.0``, which makes 0 of -0. So are differences of which it
cancels a term, written as sums with ``-1.0`` times
that: ``x - x`` becomes 0, and ``x + 2.0**23 - 2.0**23``, which rounds x to an integer, becomes x.
"""

import math

import tvm_ffi
from tvm import ir, tirx

from .structural import structural_map


def _with_zero(node: tirx.Mul | tirx.Div) -> ir.Expr:
    factors = [_zeros_hidden(x) for x in (node.a, node.b)]
    if factors[0].same_as(node.a) and factors[1].same_as(node.b):
        return node
    return type(node)(*factors)


def _with_positive_zero(node: tirx.Add) -> ir.Expr:
    terms = [_positive_zero_hidden(x) for x in (node.a, node.b)]
    if terms[0].same_as(node.a) and terms[1].same_as(node.b):
        return node
    return tirx.Add(*terms)


def _positive_zero_hidden(term: ir.Expr) -> ir.Expr:
    is_zero = isinstance(term, tirx.FloatImm) and term.value == 0
    return _hidden_zero(term) if is_zero and math.copysign(1, term.value) > 0 else term


def _difference(node: tirx.Sub) -> ir.Expr:
    a, b = node.a, node.b
    if isinstance(b, tirx.FloatImm) and b.value == 0 and math.copysign(1, b.value) < 0:
        return tirx.Add(a, _hidden_zero(tirx.FloatImm(b.ty.dtype, 0.0)))
    if not is_float(a) or not (_cancels(a, b) or (isinstance(b, tirx.Add) and _cancels(b, a))):
        return node
    return tirx.Add(a, tirx.Mul(b, tirx.const(-1, str(b.ty.dtype))))


def _cancels(total: ir.Expr, term: ir.Expr) -> bool:
    """Whether a value is a term, a sum with it, or a choice of it."""
    terms = [total]
    if isinstance(total, tirx.Add):
        terms += [total.a, total.b]
    elif isinstance(total, tirx.Select):
        terms += [total.true_value, total.false_value]
        if isinstance(term, tirx.Select):
            return tvm_ffi.structural_equal(total.condition, term.condition)
    return any(tvm_ffi.structural_equal(other, term) for other in terms)


ARITHMETIC = [
    (tirx.Add, _with_positive_zero),
    (tirx.Mul, _with_zero),
    (tirx.Div, _with_zero),
    (tirx.Sub, _difference),
]


def hide_from_simplifier(value: ir.Expr) -> ir.Expr:
    """Hide arithmetic of floating point numbers that TVM's simplifier takes for that of integers.

    :class:`tvm_fusion.lower.float_math.KeepNaNTests` does,
    in whole functions; this is for what is simplified before it runs.
    """
    return structural_map(value, ARITHMETIC, order="post")


def _zeros_hidden(factor: ir.Expr) -> ir.Expr:
    """Hide a factor of zero, or one that a mask chooses.

    A bound's zero, of ``if_then_else``, is left: padded convolutions need not multiply by it.
    """
    if isinstance(factor, tirx.FloatImm):
        return _hidden_zero(factor) if factor.value == 0 else factor
    if isinstance(factor, tirx.Cast) and is_float(factor):
        value = _zeros_hidden(factor.value)
        return factor if value.same_as(factor.value) else tirx.Cast(str(factor.ty.dtype), value)
    if isinstance(factor, tirx.Select):
        chosen = [_zeros_hidden(x) for x in (factor.true_value, factor.false_value)]
        if not (chosen[0].same_as(factor.true_value) and chosen[1].same_as(factor.false_value)):
            return tirx.Select(factor.condition, *chosen)
    return factor


def _hidden_zero(zero: tirx.FloatImm) -> ir.Expr:
    """Write a zero that LLVM folds and TVM does not, which takes bits of 0 for a null pointer."""
    dtype = str(zero.ty.dtype)
    wide, integer = ("float64", "int64") if dtype == "float64" else ("float32", "int32")
    hidden = tirx.reinterpret(wide, tirx.min_value(integer))  # -0.0
    if math.copysign(1, zero.value) > 0:
        hidden = tirx.abs(hidden)
    return hidden if dtype == wide else tirx.Cast(dtype, hidden)


def is_float(expr: ir.Expr) -> bool:
    """Return whether an expression has a type of floating point numbers."""
    return "float" in str(expr.ty.dtype)
