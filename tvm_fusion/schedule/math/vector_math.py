"""Float32 functions that LLVM can vectorise: it calls the C library lane by lane otherwise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

import tvm_ffi
from tvm import ir, tirx

from ...core.expressions import call_name
from ...core.loops import find
from .vector_functions import erf, exp, log, nearbyint, sigmoid, tanh
from .vector_trigonometry import acos, asin, atan, cos, sin

# Lowered in this order: TVM has vectors of what comes second, the C library's scalars of the first.
FUNCTIONS = (
    {"erf": erf, "sin": sin, "cos": cos, "atan": atan, "asin": asin, "acos": acos, "log": log},
    {"exp": exp, "sigmoid": sigmoid, "tanh": tanh, "nearbyint": nearbyint},
)
# Where rows are lanes; what all lanes share is no vector.
ROOTS = {"rsqrt": lambda x: tirx.const(1, "float32") / tirx.sqrt(x)}
# Those of TVM's vector functions that it writes as several uses of their argument.
REPEATING = ("tan", "tanh")
MOST_COPIES = 3  # of one call; an argmax has its operand four times, to compare bits of NaN


def vector_math(expr: ir.Expr, lane: ir.Expr | None = None) -> ir.Expr:
    """Replace float32 functions, NaN tests and casts of truth values by whole vectors' arithmetic.

    What TVM cannot vectorise stays as it is: it would be computed lane by lane, and on the way
    there TVM visits some bindings twice, which it refuses ("Let cannot bind the same var to two
    values"). What all lanes share stays as well: TVM visits the factors of a product twice when one
    changes and none is a vector, and a scalar call always changes. So does a function of a
    function: TVM's code generation simplifies what a variable is bound to with all earlier bindings
    put in place, which takes minutes for three exponentials and for ever for four. So does what
    TVM repeats: it would lower the copies of a binding one by one, and divisions by symbolic
    extents in them to variables of their own, hence to different values. And so does a call that an
    expression has many times: TVM's CompactBufferAllocation simplifies all copies, for ever.

    Parameters
    ----------
    expr : Expr
        A scalar expression, the value of one lane.
    lane : Expr, optional
        Which lane; any variable may be it when omitted.
    """
    expr = tvm_ffi.structural_map(
        expr, [(ir.Call, _without_isnan), (tirx.Cast, _without_truth)], order="post"
    )
    lowered = expr
    for functions in FUNCTIONS if lane is None else (ROOTS, *FUNCTIONS):
        lowered = _lowered(lowered, functions, lane)
    return lowered if makes_vectors(lowered, lane) else expr


def _lowered(
    expr: ir.Expr, functions: Mapping[str, Callable[[ir.Expr], ir.Expr]], lane: ir.Expr | None
) -> ir.Expr:
    """Lower the calls of some functions that neither bind nor are bound or repeated often."""
    kept = [call for let in find(expr, tirx.Let) for call in find(let, ir.Call)]
    calls = find(expr, ir.Call)
    copies = Counter(map(tvm_ffi.StructuralKey, calls))
    for call in calls:
        if call_name(call) in REPEATING:
            kept += find(call.args[0], ir.Call)
        if copies[tvm_ffi.StructuralKey(call)] > MOST_COPIES:
            kept.append(call)

    def lower(call: ir.Call) -> ir.Expr:
        name = call_name(call)
        if name not in functions or str(call.ty.dtype) != "float32" or find(call, tirx.Let):
            return call
        used = tirx.analysis.undefined_vars(call)
        shared = lane is not None and not any(v.same_as(lane) for v in used)
        if shared or any(call.same_as(other) for other in kept):
            return call
        return functions[name](call.args[0])

    return tvm_ffi.structural_map(expr, (ir.Call, lower), order="post")


def _without_isnan(call: ir.Call) -> ir.Expr:
    """Test the bits of a float32 instead; TVM would ask the C library lane by lane."""
    if call_name(call) != "isnan" or str(call.args[0].ty.dtype) != "float32":
        return call
    bits = tirx.bitwise_and(tirx.reinterpret("int32", call.args[0]), _integer(0x7FFFFFFF))
    return bits > _integer(0x7F800000)  # larger than infinity's


def _without_truth(cast: tirx.Cast) -> ir.Expr:
    """Choose a number instead of casting a comparison.

    TVM's code generation makes a scalar constant of a vector's type of such a cast in a binding.
    """
    if str(cast.value.ty.dtype) != "bool" or isinstance(cast.value, ir.TensorLoad):
        return cast
    dtype = str(cast.ty.dtype)
    return tirx.Select(cast.value, tirx.const(1, dtype), tirx.const(0, dtype))


def _integer(value: int) -> ir.Expr:
    return tirx.IntImm("int32", value)


def makes_vectors(body: ir.Expr | tirx.Stmt, lane: ir.Expr | None = None) -> bool:
    """Whether TVM makes vectors of all calls in an expression or statement.

    It makes a scalar loop of a statement where it does not: even of one that binds a variable,
    and the statements that follow then find the value of the last lane in every lane.
    """
    varying = None if lane is None else [lane, *(let.var for let in find(body, tirx.Let))]
    return all(_is_vectorised(call, varying) for call in find(body, ir.Call))


def _is_vectorised(call: ir.Call, varying: list[ir.Var] | None) -> bool:
    """Whether TVM makes a vector of a call; any variable may vary over lanes when None is given."""

    def varies(expr: ir.Expr) -> bool:
        variables = tirx.analysis.undefined_vars(expr)
        return any(varying is None or any(v.same_as(x) for x in varying) for v in variables)

    if call_name(call) == "if_then_else":
        return not varies(call.args[0])
    if call_name(call) == "reinterpret":
        return True
    vectorises = isinstance(call.op, ir.Op) and bool(call.op.get_attr("TVectorizable"))
    return vectorises or not varies(call)


# A maximum in one instruction, where NaN need not propagate; and a test for either form.
def plain_maximum(a: ir.Expr, b: ir.Expr) -> ir.Expr:
    """Choose the larger of two numbers; of NaN and a number, the second.

    One x86 instruction, where ``tirx.Max``, which propagates NaN, has three.
    """
    return tirx.Select(tirx.GT(a, b), a, b)


def is_maximum(expr: ir.Expr) -> bool:
    """Whether an expression is the maximum of two others, NaN propagated or not."""
    if isinstance(expr, tirx.Select):
        return tvm_ffi.structural_equal(expr, plain_maximum(expr.true_value, expr.false_value))
    return isinstance(expr, tirx.Max)
