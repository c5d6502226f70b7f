"""Floating point operators as IEEE 754 has them: NaN, hyperbolic functions."""

import math
from collections.abc import Callable
from functools import partial, reduce
from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.backend.cuda.op import cuda_func_call
from tvm.ir.transform import PassContext

from .._tvm.ir.simplifier import ARITHMETIC, is_float
from .._tvm.ir.structural import structural_map
from .._tvm.ir.target import target_kind
from ..core.tir.expressions import call_name
from ..core.tir.hyperbolic import DTYPES, cosh, sinh

_FORMS = {"cosh": cosh, "sinh": sinh}


@tirx.transform.prim_func_pass(opt_level=0, name="HyperbolicByExponentials")
class HyperbolicByExponentials:
    """Write ``cosh`` and ``sinh`` by exponentials, which can be vectorized."""

    def transform_function(
        self, func: tirx.PrimFunc, _mod: ir.IRModule, _ctx: PassContext
    ) -> tirx.PrimFunc:
        """Replace the calls in one function."""

        def written(call: ir.Call) -> ir.Expr:
            form = _FORMS.get(call_name(call))
            if form is None or str(call.ty.dtype) not in DTYPES:
                return call
            return form(call.args[0])

        return tvm_ffi.structural_map(func, [(ir.Call, written)], order="post")


# Maxima, minima and comparisons of floating point numbers of which some are NaN.
#
# ``tirx.Max(a, b)`` means the maximum that passes NaN on, from the operator to the last pass: it is
# associative and commutative, so that reductions may be cut and reordered, and TVM's simplifier
# leaves floating point alone. Only TVM 0.27's code generators differ. LLVM gets ``a > b ? a : b``,
# which loses a NaN in ``a``; CUDA gets ``fmaxf``, which loses both; and ``a != b`` becomes LLVM's
# ordered comparison, false where one is NaN. Here, behind the last pass, they become what is right:
#
#     max(a, constant)   constant > a ? constant : a         one instruction of x86
#     max(a, b)          a == a ? (a > b ? a : b) : a        both are variables or elements,
#                                                            computed once; of a running maximum
#                                                            a is the new
#                        a > b or a is NaN ? a : b           a alone is: the running maximum
#                        llvm.maximum(a, b)                  neither is
#                        max.NaN                             CUDA; one instruction from sm_80 on
#     a != b             not (a == b)                        LLVM; C++ means the same by both
#
# ``not`` of a vector, which CUDA's generator writes as C++ has it for scalars alone, is a
# comparison with false.
#
# TVM's simplifier does take comparisons for those of numbers: ``x == x`` becomes true, ``not a <
# b`` becomes ``b <= a``. Such are written with tests of bits before it runs; arithmetic is hidden
# from it by :mod:`tvm_fusion._tvm.ir.simplifier`.
#
# A variable for the operand would do without ``llvm.maximum``, which takes signed zeros apart as
# well, but TVM's code generator simplifies what is bound, at times for ever. The second form is
# that of running maxima of what is computed. LLVM 22 takes a loop of 8, 16, ... trips that ends in
# a choice by a comparison for a checksum, and follows every path back through its values
# (HashRecognize): from one choice of the first form to the one before it two where that is b, but
# five where it is a, for ever after 18. A choice by two comparisons is none to it.


_OPPOSITE = {tirx.LT: tirx.GE, tirx.LE: tirx.GT, tirx.GT: tirx.LE, tirx.GE: tirx.LT}
_INFINITY = {  # its bits, as the integer that they are
    "float16": ("int16", 0x7C00),
    "float32": ("int32", 0x7F800000),
    "float64": ("int64", 0x7FF0000000000000),
}
_TYPES = {"float32": "float", "float16": "half", "bfloat16": "nv_bfloat16"}
_NAME = "tvm_fusion_{kind}_{dtype}"
_SOURCE = """
#ifndef {name}_defined
#define {name}_defined
__forceinline__ __device__ {type} {name}({type} a, {type} b) {{
#if __CUDA_ARCH__ >= 800
  {instruction}
#else
  return a == a ? (a {order} b ? a : b) : a;
#endif
}}
#endif
"""
# TVM 0.27's CUDA generator has no type for the conditions of choices among eight lanes.
_LANES = """
template <typename Vector>
__forceinline__ __device__ Vector {name}x{lanes}(Vector a, Vector b) {{
  Vector c;
  #pragma unroll
  for (int i = 0; i < {lanes}; ++i)
    (({type}*)&c)[i] = {name}((({type}*)&a)[i], (({type}*)&b)[i]);
  return c;
}}
"""
_FLOAT = 'float c; asm("{kind}.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b)); return c;'
_HALF = "return __h{kind}_nan(a, b);"


@tirx.transform.prim_func_pass(opt_level=0, name="PassNaNOn")
class PassNaNOn:
    """Write floating point extrema so that code generators pass NaN on; the last pass of all."""

    def transform_function(
        self, func: tirx.PrimFunc, _mod: ir.IRModule, _ctx: PassContext
    ) -> tirx.PrimFunc:
        """Rewrite one function, for the target that it is to run on."""
        on_cuda = target_kind(func) == "cuda"
        extremum = partial(_extremum, write=_for_cuda if on_cuda else _for_llvm)
        kinds: list[Any] = [(tirx.Max, extremum), (tirx.Min, extremum)]
        if on_cuda:
            kinds += [(ir.Call, _negative_zero), (tirx.Not, _not_of_lanes)]
        else:
            kinds.append((tirx.NE, _not_equal))
            func = func.with_body(
                structural_map(func.body, (tirx.BufferStore, _element_first), order="post")
            )
        return func.with_body(structural_map(func.body, kinds, order="post"))


@tirx.transform.prim_func_pass(opt_level=0, name="KeepNaNTests")
class KeepNaNTests:
    """Hide from TVM's simplifier what holds for integers or for finite numbers only."""

    def transform_function(
        self, func: tirx.PrimFunc, _mod: ir.IRModule, _ctx: PassContext
    ) -> tirx.PrimFunc:
        """Rewrite one function that is not lowered yet."""
        kinds: list[Any] = [(tirx.EQ, _same), (tirx.NE, _same), (tirx.Not, _opposite)]
        kinds += ARITHMETIC
        return func.with_body(structural_map(func.body, kinds, order="post"))


def _same(node: tirx.EQ | tirx.NE) -> ir.Expr:
    if not is_float(node.a) or not tvm_ffi.structural_equal(node.a, node.b):
        return node
    is_nan = isnan(node.a)
    return is_nan if isinstance(node, tirx.NE) else tirx.Not(is_nan)


def _opposite(node: tirx.Not) -> ir.Expr:
    opposite = _OPPOSITE.get(type(node.a))
    if opposite is None or not is_float(node.a.a):
        return node
    a, b = node.a.a, node.a.b
    tests = [isnan(operand) for operand in (a, b) if not _is_number(operand)]
    return reduce(tirx.Or, tests, opposite(a, b))


def isnan(value: ir.Expr) -> ir.Expr:
    """Test the bits of a scalar: larger than infinity's, its sign aside.

    Parameters
    ----------
    value
        Of a floating point type.
    """
    dtype = str(value.ty.dtype)
    if dtype not in _INFINITY:
        value, dtype = tirx.Cast("float32", value), "float32"
    integer, infinity = _INFINITY[dtype]
    mask = 2 ** (int(integer[3:]) - 1) - 1
    bits = tirx.bitwise_and(tirx.reinterpret(integer, value), tirx.IntImm(integer, mask))
    return bits > tirx.IntImm(integer, infinity)


def _element_first(store: tirx.BufferStore) -> tirx.BufferStore:
    """Make the new element the first operand of a running maximum or minimum."""
    value = store.value
    if not isinstance(value, (tirx.Max, tirx.Min)):
        return store
    is_running = isinstance(value.a, ir.TensorLoad) and value.a.source.same_as(store.buffer)
    if not is_running or not isinstance(value.b, ir.TensorLoad):
        return store
    return tirx.BufferStore(store.buffer, type(value)(value.b, value.a), list(store.indices))


def _extremum(node: tirx.Max | tirx.Min, write: Callable[..., ir.Expr]) -> ir.Expr:
    if not is_float(node.a):
        return node
    operands = sorted((node.b, node.a), key=_rank)
    return write("max" if isinstance(node, tirx.Max) else "min", *operands)


def _rank(expr: ir.Expr) -> int:
    """Put what may be repeated first, and constants last."""
    return 2 if _is_number(expr) else 0 if isinstance(expr, (ir.Var, ir.TensorLoad)) else 1


def _for_llvm(kind: str, a: ir.Expr, b: ir.Expr) -> ir.Expr:
    chosen = tirx.Max if kind == "max" else tirx.Min  # the second where either is NaN
    if _is_number(b):
        return chosen(b, a)
    if _rank(b) == 0:  # the first of both, as `_extremum` has turned them around
        return tirx.Select(tirx.EQ(b, b), chosen(b, a), b)
    if _rank(a) == 0:
        beyond = (tirx.GT if kind == "max" else tirx.LT)(a, b)
        return tirx.Select(tirx.Or(beyond, tirx.Not(tirx.EQ(a, a))), a, b)
    return tirx.call_llvm_pure_intrin(str(a.ty.dtype), f"llvm.{kind}imum", a, b)


def _for_cuda(kind: str, a: ir.Expr, b: ir.Expr) -> ir.Expr:
    whole, order = str(a.ty.dtype), ">" if kind == "max" else "<"
    dtype, _, lanes = whole.partition("x")
    if dtype not in _TYPES:
        chosen = tirx.Select(tirx.GT(a, b) if kind == "max" else tirx.LT(a, b), a, b)
        return tirx.Select(tirx.EQ(a, a), chosen, a)
    name = _NAME.format(kind=kind, dtype=dtype)
    instruction = (_FLOAT if dtype == "float32" else _HALF).format(kind=kind)
    source = _SOURCE.format(type=_TYPES[dtype], name=name, instruction=instruction, order=order)
    if lanes:
        source += _LANES.format(type=_TYPES[dtype], name=name, lanes=lanes)
        name = f"{name}x{lanes}"
    return cuda_func_call(name, a, b, source_code=source, return_type=whole)


def _negative_zero(call: ir.Call) -> ir.Expr:
    """Replace ``reinterpret`` of a constant by its value: CUDA takes no address of a constant.

    ``reinterpret`` becomes ``*(float *)(&(x))`` there.
    """
    if call_name(call) != "reinterpret" or not isinstance(call.args[0], tirx.IntImm):
        return call
    dtype, bits = str(call.ty.dtype), call.args[0].value
    is_it = dtype in ("float32", "float64") and bits == -(2 ** (int(dtype[5:]) - 1))
    return tirx.FloatImm(dtype, -0.0) if is_it else call


def _not_equal(node: tirx.NE) -> ir.Expr:
    return tirx.Not(tirx.EQ(node.a, node.b)) if is_float(node.a) else node


def _not_of_lanes(node: tirx.Not) -> ir.Expr:
    lanes = node.ty.dtype.lanes
    if lanes == 1:
        return node
    return tirx.EQ(node.a, tirx.Broadcast(tirx.IntImm("bool", 0), lanes))


def _is_number(expr: ir.Expr) -> bool:
    """Whether it is a constant other than NaN, or a vector of one."""
    value = expr.value if isinstance(expr, tirx.Broadcast) else expr
    return isinstance(value, tirx.FloatImm) and not math.isnan(value.value)
