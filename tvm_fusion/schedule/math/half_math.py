"""Fast math for half-type results on NVIDIA GPUs, within one ulp.

A result of float16 or bfloat16 may be off by one unit in the last place. Two forms stay within it:

* a function of half-type operands, `tanh(x)`, computed in float32 and rounded;
* float32 arithmetic that is rounded to a half type. A function in it may have a small relative
  error if what is done to it keeps relative errors small: products, quotients, choices, extrema and
  sums of terms that are not negative. Everything else, differences above all, is left exact, and so
  are the arguments of functions.

Float32 results stay exact. CUDA's own functions of half types for the rest (roots, logarithms,
quotients of half-type numbers) take few instructions already. Other devices are unchanged.
"""

from __future__ import annotations

import math

import tvm_ffi
from tvm import ir, tirx
from tvm.ir.transform import PassContext

from ...core.expressions import call_name
from ...core.loops import NEAR, find
from .half_functions import argument_of, call, widen

HALF_TYPES = frozenset({"float16", "bfloat16"})
# Those with a form for float16's range.
RANGED = frozenset({"exp", "sigmoid"})
UNARY = frozenset({"exp", "sigmoid", "tanh", "erf"})
# Those with a form with 1 added.
CENTRED = frozenset({"tanh", "erf"})
# Functions in one product: each is off by an eighth of an ulp at worst, and rounding takes a half.
MOST = 3


@tirx.transform.prim_func_pass(opt_level=0, name="HalfMath")
class HalfMath:
    """Lower functions whose results are rounded to half types."""

    def transform_function(
        self, func: tirx.PrimFunc, _mod: ir.IRModule, _ctx: PassContext
    ) -> tirx.PrimFunc:
        """Lower one function for an NVIDIA GPU; others are unchanged."""
        target = func.attrs.get("target") if func.attrs else None
        if target is None or target.kind.name != "cuda" or not _runs_on_threads(func):
            return func
        body = tvm_ffi.structural_map(
            func.body, [(ir.Call, _function), (tirx.Cast, _rounded)], order="post"
        )
        return func.with_body(_with_near_widened(body))


def _runs_on_threads(func: tirx.PrimFunc) -> bool:
    """Whether a function is bound to threads, without vectors of what is lowered here.

    TVM would scalarize such a vector.
    """
    loops = find(func.body, tirx.For)
    vectors = [x.body for x in loops if x.kind == tirx.ForKind.VECTORIZED]
    return any(x.kind == tirx.ForKind.THREAD_BINDING for x in loops) and not any(
        call_name(node) in UNARY or isinstance(node, tirx.Div)
        for body in vectors
        for node in find(body, ir.Expr)
    )


def _function(node: ir.Call) -> ir.Expr:
    """Compute a function of half-type numbers in float32."""
    name = call_name(node)
    if name not in UNARY or str(node.ty.dtype) not in HALF_TYPES:
        return node
    dtype = str(node.ty.dtype)
    name = f"{name}_float16" if name in RANGED and dtype == "float16" else name
    return tirx.Cast(dtype, call(name, tirx.Cast("float32", node.args[0])))


def _with_near_widened(body: tirx.Stmt) -> tirx.Stmt:
    """Widen bfloat16 that was staged in registers or shared memory by one instruction.

    Loads of global memory are left to the compiler, which issues all of them before it widens any.
    """
    near = [
        store.buffer
        for copy in find(body, tirx.For)
        if NEAR in copy.annotations
        for store in find(copy, tirx.BufferStore)
    ]

    def widened(cast: tirx.Cast) -> ir.Expr:
        value = cast.value
        is_near = isinstance(value, ir.TensorLoad) and any(value.source.same_as(b) for b in near)
        types = str(value.ty.dtype), str(cast.ty.dtype)
        return widen(value) if is_near and types == ("bfloat16", "float32") else cast

    return tvm_ffi.structural_map(body, (tirx.Cast, widened), order="post") if near else body


def _rounded(node: tirx.Cast) -> ir.Expr:
    """Approximate float32 arithmetic that is rounded to a half type."""
    if str(node.ty.dtype) not in HALF_TYPES or str(node.value.ty.dtype) != "float32":
        return node
    dtype, value = str(node.ty.dtype), _relaxed(node.value, [MOST])
    return tirx.Cast(dtype, _gelu(value, dtype))


def _gelu(expr: ir.Expr, dtype: str) -> ir.Expr:
    """Compute ``x * normal_cdf(x)`` at once."""
    if isinstance(expr, tirx.Mul):
        for x, function in ((expr.a, expr.b), (expr.b, expr.a)):
            argument = argument_of(function, "normal_cdf")
            if argument is not None and tvm_ffi.structural_equal(x, argument):
                return call(f"gelu_{dtype}", x)
    return expr


def _relaxed(expr: ir.Expr, left: list[int]) -> ir.Expr:
    """Approximate an expression of which only the relative error matters.

    Parameters
    ----------
    expr : PrimExpr
        Of float32.
    left : list of int
        How many functions may still be approximated: one number, counted down.
    """
    if isinstance(expr, tirx.Mul | tirx.Max | tirx.Min):
        return type(expr)(_relaxed(expr.a, left), _relaxed(expr.b, left))
    if isinstance(expr, tirx.Div):
        above, below = _relaxed(expr.a, left), _relaxed(expr.b, left)
        return call("div", above, below) if _take(left) else tirx.Div(above, below)
    if isinstance(expr, tirx.Select):
        return tirx.Select(
            expr.condition,
            _relaxed(expr.true_value, left),
            _relaxed(expr.false_value, left),
        )
    if isinstance(expr, tirx.Add):
        return _sum(expr, left)
    name = call_name(expr)
    if name == "if_then_else":
        condition, *branches = expr.args
        return tirx.if_then_else(condition, *(_relaxed(b, left) for b in branches))
    if name in UNARY and _take(left):
        return call(name, expr.args[0])
    return expr


def _sum(expr: tirx.Add, left: list[int]) -> ir.Expr:
    """Approximate ``1 + tanh(x)``, ``c + c * erf(x)``, or a sum of non-negative terms."""
    for term, other in ((expr.a, expr.b), (expr.b, expr.a)):
        function = _scaled(other, term)
        if function is not None and _take(left):
            (argument,) = function.args
            if call_name(function) == "tanh":
                return call("one_plus_tanh", argument) * term
            return _times(call("normal_cdf", _times(argument, math.sqrt(2))), 2 * term.value)
    if _is_positive(expr.a) and _is_positive(expr.b):
        return _relaxed(expr.a, left) + _relaxed(expr.b, left)
    return expr


def _scaled(expr: ir.Expr, factor: ir.Expr) -> ir.Call | None:
    """Return the function between -1 and 1 that is multiplied by a constant; else ``None``."""
    if not isinstance(factor, tirx.FloatImm):
        return None
    if isinstance(expr, tirx.Mul):
        for scale, function in ((expr.a, expr.b), (expr.b, expr.a)):
            is_same = isinstance(scale, tirx.FloatImm) and math.isclose(scale.value, factor.value)
            if is_same and call_name(function) in CENTRED:
                return function
    return expr if factor.value == 1 and call_name(expr) in CENTRED else None


def _times(expr: ir.Expr, factor: float) -> ir.Expr:
    """Multiply with a constant, and with the one that is there already at once."""
    if isinstance(expr, tirx.Mul) and isinstance(expr.b, tirx.FloatImm):
        expr, factor = expr.a, expr.b.value * factor
    elif isinstance(expr, tirx.Div) and isinstance(expr.b, tirx.FloatImm):
        expr, factor = expr.a, factor / expr.b.value
    is_one = math.isclose(factor, 1, rel_tol=2.0**-22)
    return expr if is_one else expr * tirx.const(factor, "float32")


def _is_positive(expr: ir.Expr) -> bool:
    """Whether a number is not negative by its form."""
    if isinstance(expr, tirx.FloatImm):
        return expr.value >= 0
    if isinstance(expr, tirx.Mul):
        is_square = tvm_ffi.structural_equal(expr.a, expr.b)
        return is_square or (_is_positive(expr.a) and _is_positive(expr.b))
    if isinstance(expr, tirx.Div | tirx.Add):
        return _is_positive(expr.a) and _is_positive(expr.b)
    return call_name(expr) in ("exp", "sigmoid", "fabs", "sqrt")


def _take(left: list[int]) -> bool:
    left[0] -= 1
    return left[0] >= 0
