"""Fast math for half-type results on GPUs, within one ulp.

A result of float16 or bfloat16 may be off by one unit in the last place. Two forms stay within it:

* a function of half-type operands, `tanh(x)`, computed in float32 and rounded;
* float32 arithmetic that is rounded to a half type. A function in it may have a small relative
  error if what is done to it keeps relative errors small: products, quotients, choices, extrema and
  sums of terms that are not negative. Everything else, differences above all, is left exact, and so
  are the arguments of functions.

Float32 results stay exact. CUDA's own functions of half types for the rest (roots, logarithms,
quotients of half-type numbers) take few instructions already. NVIDIA's GPUs call functions of CUDA,
AMD's compute the same as expressions, which :mod:`.amd_half_functions` puts in the place of the
calls; CPUs are unchanged.
"""

import math

import tvm_ffi
from tvm import ir, tirx
from tvm.backend.cuda.op import cuda_func_call
from tvm.ir.transform import PassContext

from ..._tvm.ir.target import target_kind
from ...core.tir.expressions import call_name
from ...core.tir.loops import NEAR, find

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
        """Lower one function for a GPU; others are unchanged."""
        kind = target_kind(func)
        if kind not in ("cuda", "rocm") or not _runs_on_threads(func):
            return func
        body = tvm_ffi.structural_map(
            func.body, [(ir.Call, _function), (tirx.Cast, _rounded)], order="post"
        )
        if kind == "rocm":
            return func.with_body(body)
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
    expr
        Of float32.
    left
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


# Fast CUDA functions of float32 whose results are rounded to a half type.
#
# A multiprocessor computes 16 exponentials or reciprocals a cycle and 128 multiply-adds. An
# elementwise kernel over half types has time for some 28 instructions an element before it is no
# longer bound by memory. CUDA's float32 functions take 20 to 40, divisions 10.
#
# Relative errors are below 2**-14 (of `div`: 2**-22), an eighth of float16's ulp at worst, on top
# of the half ulp of rounding. GELU, with which nothing else is rounded, has a fifth of an ulp of
# its type. By PTX's manual, the instructions' own errors are 2**-22 (`ex2.approx`, `div.full`) and
# 2**-23 (`rcp.approx`). What `ftz` flushes to zero matters to bfloat16, whose range is float32's:
# exponentials are therefore squares of square roots, or scaled up before.
PREFIX = "tvm_fusion_half_"
_SIGNATURE = f"__forceinline__ __device__ float {PREFIX}"

INSTRUCTIONS = """
#ifndef TVM_FUSION_HALF_INSTRUCTIONS
#define TVM_FUSION_HALF_INSTRUCTIONS
__forceinline__ __device__ float tvm_fusion_ex2(float x) {
  float y; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y;
}
__forceinline__ __device__ float tvm_fusion_rcp(float x) {
  float y; asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y;
}
__forceinline__ __device__ float tvm_fusion_div(float x, float y) {
  float z; asm("div.full.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y)); return z;
}
// Unlike fminf and fmaxf, these keep NaN.
__forceinline__ __device__ float tvm_fusion_positive(float x) {
#if __CUDA_ARCH__ >= 800
  float y; asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(x), "f"(0.0f)); return y;
#else
  return x < 0.0f ? 0.0f : x;
#endif
}
// Between 0 and 1, with the product that it is of in one instruction; of NaN, 0.
__forceinline__ __device__ float tvm_fusion_part(float x) {
  return __saturatef(x);
}
__forceinline__ __device__ float tvm_fusion_clip(float x, float limit) {
#if __CUDA_ARCH__ >= 800
  float y; asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(x), "f"(limit));
  float z; asm("max.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(y), "f"(-limit)); return z;
#else
  return x > limit ? limit : x < -limit ? -limit : x;
#endif
}
#endif
"""

# tanh and erf are x times quotients of polynomials in x**2, within a limit beyond which float16
# sees only 1; 1 + erf has exp(x*x) erfc(x) as a polynomial in 1 / (1 + 0.53 x), on 0 <= x <= 10.
# All are least squares at Chebyshev points, reweighted until the relative errors were even:
# 2**-14.6 for tanh, 2**-14.9 for the others.
FUNCTIONS = {
    "exp": """(float x) {
  float root = tvm_fusion_ex2(x * 0.72134752f);  // log2(e) / 2
  return root * root;
}
""",
    "sigmoid": """(float x) {
  float root = tvm_fusion_ex2(fabsf(x) * -0.72134752f), power = root * root;
  float one = tvm_fusion_rcp(1.0f + power);
  return x < 0.0f ? power * one : one;
}
""",
    # For arguments and results of float16: what overflows or is subnormal here is infinite or 0
    # there.
    "exp_float16": """(float x) {
  return tvm_fusion_ex2(x * 1.4426950f);
}
""",
    "sigmoid_float16": """(float x) {
  return tvm_fusion_rcp(1.0f + tvm_fusion_ex2(x * -1.4426950f));
}
""",
    "tanh": """(float x) {
  float y = tvm_fusion_clip(x, 4.75f), square = y * y;
  float above = fmaf(fmaf(0.000694804121f, square, 0.103178663f), square, 0.999961297f);
  float below = fmaf(fmaf(0.0130562071f, square, 0.436264292f), square, 1.0f);
  return y * above * tvm_fusion_rcp(below);
}
""",
    "erf": """(float x) {
  float y = tvm_fusion_clip(x, 2.8f), square = y * y;
  float above = fmaf(fmaf(0.0295823804f, square, 0.17079267f), square, 1.12834321f);
  float below = fmaf(fmaf(0.00359766f, square, 0.08901873f), square, 0.48416531f);
  return y * above * tvm_fusion_rcp(fmaf(below, square, 1.0f));
}
""",
    # Half of 1 + erf(x / sqrt(2)): the relative error is that small where it is nearly 0, too.
    "normal_cdf": """(float x) {
  float near = tvm_fusion_rcp(fmaf(fabsf(x), 0.37476659f, 1.0f));
  float root = tvm_fusion_ex2(x * x * -0.36067376f);
  float scaled = fmaf(fmaf(-0.09049869f, near, 0.200432165f), near, 0.083456685f);
  scaled = fmaf(fmaf(scaled, near, 0.15764137f), near, 0.1489692f) * near;
  float tail = scaled * root * root;
  return x < 0.0f ? tail : 1.0f - tail;
}
""",
    # x times that: x or 0 minus |x| times the tail beyond |x|, a power of two whose exponent is a
    # polynomial in |x|. A 4096th of |x|, at most 1, stands for it, so that the power is 4096 times
    # the tail: a normal number as long as the result is any. The error is below 2**-13.5 down to
    # float16's smallest normal numbers, and below an eighth of its smallest number.
    "gelu_float16": """(float x) {
  float part = tvm_fusion_part(fabsf(x) * 0.000244140625f);
  float power = fmaf(-3.69513787e+14f, part, 1.64020775e+12f);
  power = fmaf(fmaf(power, part, -3.31481139e+09f), part, -7786668.5f);
  power = fmaf(fmaf(power, part, -4707.02197f), part, 10.9998789f);
  return fmaf(-part, tvm_fusion_ex2(power), tvm_fusion_positive(x));
}
""",
    # The same below 2**-10.8 down to bfloat16's smallest number.
    "gelu_bfloat16": """(float x) {
  float part = tvm_fusion_part(fabsf(x) * 0.000244140625f);
  float power = fmaf(fmaf(-6.02219561e+18f, part, 8.25155645e+16f), part, -4.7594566e+14f);
  power = fmaf(fmaf(power, part, 1.52291626e+12f), part, -3.03892045e+09f);
  power = fmaf(fmaf(power, part, -7940612.5f), part, -4680.44727f);
  power = fmaf(power, part, 10.9991913f);
  return fmaf(-part, tvm_fusion_ex2(power), tvm_fusion_positive(x));
}
""",
    # Twice the sigmoid of 2 x, as exact where it is nearly 0.
    "one_plus_tanh": """(float x) {
  float root = tvm_fusion_ex2(fabsf(x) * -1.4426950f), power = root * root;
  float two = 2.0f * tvm_fusion_rcp(1.0f + power);
  return x < 0.0f ? power * two : two;
}
""",
    "div": """(float x, float y) {
  return tvm_fusion_div(x, y);
}
""",
}


def source(name: str) -> str:
    """Write one of :data:`FUNCTIONS` without the instructions that it uses."""
    return f"{_SIGNATURE}{name}{FUNCTIONS[name]}"


def call(name: str, *arguments: ir.Expr) -> ir.Expr:
    """Call one of :data:`FUNCTIONS`.

    Parameters
    ----------
    *arguments
        Of float32, as the result.
    """
    text = INSTRUCTIONS + source(name)
    return cuda_func_call(PREFIX + name, *arguments, source_code=text, return_type="float32")


# CUDA's own conversion takes two instructions for the upper half of each word.
_WIDEN = """
__forceinline__ __device__ float tvm_fusion_widen(nv_bfloat16 x) {
  unsigned short low = 0;
  float y; asm("mov.b32 %0, {%1, %2};" : "=f"(y) : "h"(low), "h"(__bfloat16_as_ushort(x)));
  return y;
}
"""


def widen(value: ir.Expr) -> ir.Expr:
    """Convert a bfloat16 to float32."""
    return cuda_func_call("tvm_fusion_widen", value, source_code=_WIDEN, return_type="float32")


def argument_of(expr: ir.Expr, name: str) -> ir.Expr | None:
    """Return what one of :data:`FUNCTIONS` is called with; ``None`` for anything else."""
    called = called_function(expr)
    return called[1][0] if called is not None and called[0] == name else None


def called_function(expr: ir.Expr) -> tuple[str, list[ir.Expr]] | None:
    """Return which of :data:`FUNCTIONS` is called, and with what."""
    if not isinstance(expr, ir.Call) or call_name(expr) != "func_call":
        return None
    called, *arguments, _source = expr.args
    name = str(called.value)
    return (name.removeprefix(PREFIX), arguments) if name.startswith(PREFIX) else None
