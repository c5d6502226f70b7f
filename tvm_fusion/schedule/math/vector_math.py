"""Float32 functions that LLVM can vectorise: it calls the C library lane by lane otherwise."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import tvm_ffi
from tvm import ir, tirx

from ...core.tir.expressions import call_name
from ...core.tir.loops import find
from .half_math import HALF_TYPES
from .vector_functions import (
    _float,
    _polynomial,
    erf,
    exp,
    half_sigmoid,
    log,
    nearbyint,
    sigmoid,
    tanh,
)

# Trigonometric functions of :mod:`vector_math` and their inverses, without branches.
#
# Right over all float32 arguments, however large: an angle is brought into an eighth of a circle
# with as much of 2 / pi as its exponent asks for. The idea is Payne and Hanek's; a float32's 24
# bits times 27 bits of the constant are exact in float64, so that no integers are needed.
# (sin(z) / z - 1) / z**2 and (cos(z) - 1 + z**2 / 2) / z**4 over z**2, lowest power first, on
# |z| <= pi / 4; (atan(z) / z - 1) / z**2 on |z| <= 1, (asin(z) / z - 1) / z**2 on |z| <= 1 / 2:
# least squares at Chebyshev points, coefficients rounded one after the other; their own errors are
# below 6e-10.
SIN = (-0.1666666716337204, 0.008333372883498669, -0.00019850299577228725, 2.804443738568807e-06)
COS = (0.0416666679084301, -0.0013888974208384752, 2.4819737518555485e-05, -2.866178760996263e-07)
ATAN = (-0.33333325386047363, 0.1999962329864502, -0.1427926868200302, 0.11054810136556625,
        -0.08799088001251221, 0.06715638190507889, -0.04433967545628548, 0.02225244604051113,
        -0.007186720613390207, 0.0010882181813940406)  # fmt: skip
ASIN = (0.16666659712791443, 0.07500515133142471, 0.04451543092727661, 0.03181745857000351,
        0.01440940611064434, 0.03754977136850357)  # fmt: skip
# 2 / pi times 2**(26 j), less what is a multiple of 4, in pieces of 27 bits and the rest.
QUARTERS = (
    ("0x1.45f306p-1", "0x1.b939104p-26", "0x1.4a7f098p-54", "0x1.57d1f534ddc0ep-80"),
    ("0x1.b93910p+0", "0x1.529fc24p-26", "0x1.abe8fa8p-53", "0x1.a6ee06db14acdp-81"),
    ("0x1.529fc2p+0", "0x1.d5f47d4p-26", "0x1.a6ee060p-55", "0x1.b6295993c4390p-80"),
    ("0x1.d5f47dp+0", "0x1.34ddc0cp-26", "0x1.b629598p-54", "0x1.3c439041fe516p-82"),
)
STEP, FIRST = 26, 50  # bits: an argument times 2**(-26 j) is below 2**50
ROUND = 1.5 * 2.0**52  # adding it to a float64 leaves an integer in its last bits


def sin(argument: ir.Expr) -> ir.Expr:
    """Sine, right to 2 ulp."""
    return _wave(argument, 0.0)


def cos(argument: ir.Expr) -> ir.Expr:
    """Cosine, right to 2 ulp."""
    return _wave(argument, 1.0)


def _wave(argument: ir.Expr, phase: float) -> ir.Expr:
    """Sine of an angle so many quarters of a circle ahead."""
    # Every sum that rounds has a name: TVM would take (x + ROUND) - ROUND for x. All are bound in
    # one chain, since TVM visits what is bound twice at times, and refuses bindings inside of it.
    x, y, high, high_sum, first, low, low_sum, second, third = _doubles(
        "x y high high_sum first low low_sum second third"
    )
    sum_, quarter, rest, shifted, down_sum, turn, half_sum = _doubles(
        "sum quarter rest shifted down_sum turn half_sum"
    )
    raw, z, square = (tirx.Var(name, "float32") for name in ("raw", "z", "square"))
    size = tirx.Select(x < _double(0), _double(0) - x, x)

    def by_size(values: Sequence[float]) -> ir.Expr:
        chosen = _double(values[-1])
        for j in range(len(values) - 2, -1, -1):
            limit = _double(2.0 ** (FIRST + STEP * j))
            chosen = tirx.Select(size < limit, _double(values[j]), chosen)
        return chosen

    pieces = [by_size([float.fromhex(row[k]) for row in QUARTERS]) for k in range(4)]
    sine = z + z * square * _polynomial(SIN, square)
    cosine = _float(1) - square * _float(0.5) + square * square * _polynomial(COS, square)
    # halves of the circle that are passed; turn is a half where a quarter is passed as well
    passed = shifted - turn
    swapped = tirx.Select(turn != _double(0), cosine, sine)
    is_lower = (half_sum - _double(ROUND)) * _double(2) != passed
    result = tirx.Select(is_lower, _float(0) - swapped, swapped)
    if not phase:  # zeros keep their sign
        result = tirx.Select(raw == _float(0), raw, result)
    angle = tirx.Cast("float32", rest * _double(math.pi / 2))
    for variable, value in (
        (square, z * z),
        (z, angle),
        (half_sum, passed * _double(0.5) + _double(ROUND)),
        (turn, shifted - (down_sum - _double(ROUND))),
        (down_sum, shifted - _double(0.25) + _double(ROUND)),  # rounds a multiple of a half down
        (shifted, (quarter + _double(phase)) * _double(0.5)),
        (rest, (first - quarter) + second + third),
        (quarter, sum_ - _double(ROUND)),
        (sum_, first + second + third + _double(ROUND)),  # the third may be a fifth
        (third, y * pieces[2] + y * pieces[3]),
        (second, low - (low_sum - _double(ROUND)) * _double(4)),
        (low_sum, low * _double(0.25) + _double(ROUND)),
        (low, y * pieces[1]),
        (first, high - (high_sum - _double(ROUND)) * _double(4)),
        (high_sum, high * _double(0.25) + _double(ROUND)),
        (high, y * pieces[0]),
        (y, x * by_size([2.0 ** (-STEP * j) for j in range(len(QUARTERS))])),
        (x, tirx.Cast("float64", raw)),
        (raw, argument),
    ):
        result = tirx.Let(variable, value, result)
    return result


def _doubles(names: str) -> list[ir.Var]:
    return [tirx.Var(name, "float64") for name in names.split()]


def atan(argument: ir.Expr) -> ir.Expr:
    """Inverse tangent, right to 3 ulp."""
    raw, x, z, square = (tirx.Var(name, "float32") for name in ("raw", "x", "z", "square"))
    flat = z + z * square * _polynomial(ATAN, square)
    upright = tirx.Select(x > _float(1), _float(math.pi / 2) - flat, flat)
    result = tirx.Select(raw < _float(0), _float(0) - upright, upright)
    result = tirx.Select(raw == _float(0), raw, result)
    for variable, value in (
        (square, z * z),
        (z, tirx.Select(x > _float(1), _float(1) / x, x)),
        (x, tirx.Select(raw < _float(0), _float(0) - raw, raw)),
        (raw, argument),
    ):
        result = tirx.Let(variable, value, result)
    return result


def asin(argument: ir.Expr) -> ir.Expr:
    """Inverse sine, right to 4 ulp; NaN beyond 1."""
    raw, x, z, square = (tirx.Var(name, "float32") for name in ("raw", "x", "z", "square"))
    small = z + z * square * _polynomial(ASIN, square)
    result = tirx.Select(x > _float(0.5), _float(math.pi / 2) - _float(2) * small, small)
    result = tirx.Select(raw < _float(0), _float(0) - result, result)
    result = tirx.Select(raw == _float(0), raw, result)
    return _with_root(result, raw, x, z, square, argument)


def acos(argument: ir.Expr) -> ir.Expr:
    """Inverse cosine, right to 4 ulp; NaN beyond 1."""
    raw, x, z, square = (tirx.Var(name, "float32") for name in ("raw", "x", "z", "square"))
    small = z + z * square * _polynomial(ASIN, square)
    signed = tirx.Select(raw < _float(0), _float(0) - small, small)
    far = tirx.Select(raw < _float(0), _float(math.pi) - _float(2) * small, _float(2) * small)
    result = tirx.Select(x > _float(0.5), far, _float(math.pi / 2) - signed)
    return _with_root(result, raw, x, z, square, argument)


def _with_root(
    result: ir.Expr, raw: ir.Var, x: ir.Var, z: ir.Var, square: ir.Var, argument: ir.Expr
) -> ir.Expr:
    """Bind the argument, its size and, beyond a half, the sine of half the rest of the angle."""
    rest = (_float(1) - x) * _float(0.5)
    for variable, value in (
        (z, tirx.Select(x > _float(0.5), tirx.sqrt(square), x)),
        (square, tirx.Select(x > _float(0.5), rest, x * x)),
        (x, tirx.Select(raw < _float(0), _float(0) - raw, raw)),
        (raw, argument),
    ):
        result = tirx.Let(variable, value, result)
    return result


def _double(value: float) -> ir.Expr:
    return tirx.const(value, "float64")


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
    expr
        A scalar expression, the value of one lane.
    lane
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
    coarse = [f for cast in find(expr, tirx.Cast) for f in _rounded_sigmoids(cast)]
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
        if any(call.same_as(other) for other in coarse):
            return half_sigmoid(call.args[0])
        return functions[name](call.args[0])

    return tvm_ffi.structural_map(expr, (ir.Call, lower), order="post")


def _rounded_sigmoids(cast: tirx.Cast) -> list[ir.Call]:
    """Find sigmoids in products and choices that a cast rounds to a half type."""
    found: list[ir.Call] = []

    def visit(expr: ir.Expr) -> None:
        if isinstance(expr, tirx.Mul | tirx.Div | tirx.Max | tirx.Min):
            visit(expr.a)
            visit(expr.b)
        elif isinstance(expr, tirx.Select):
            visit(expr.true_value)
            visit(expr.false_value)
        elif call_name(expr) == "sigmoid":
            found.append(expr)

    if str(cast.ty.dtype) in HALF_TYPES:
        visit(cast.value)
    return found


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
