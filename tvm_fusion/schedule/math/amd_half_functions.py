"""The functions of :mod:`.half_math` for AMD GPUs, as expressions over their instructions.

``v_exp_f32`` and ``v_rcp_f32`` are off by one ulp, and flush subnormal numbers as PTX's do; so the
errors are those that :mod:`.half_math` tells. ``v_med3_f32`` gives the least of three where one is
NaN. LLVM contracts products and sums. Coefficients: see ``FUNCTIONS`` there, whose text is the same
in CUDA. Values that are used several times are bound to variables, into which TVM's legalization of
bfloat16 does not look: calls are replaced behind it.
"""

from collections.abc import Callable, Mapping, Sequence

import tvm_ffi
from tvm import ir, tirx
from tvm.ir.transform import PassContext

from ..._tvm.ir.target import target_kind
from .half_math import called_function

Function = Callable[..., ir.Expr]


def _f(value: float) -> ir.Expr:
    return tirx.const(value, "float32")


def _call(name: str, *arguments: ir.Expr) -> ir.Expr:
    return tirx.call_llvm_pure_intrin("float32", f"llvm.amdgcn.{name}", *arguments)


def _ex2(x: ir.Expr) -> ir.Expr:
    return _call("exp2", x)


def _rcp(x: ir.Expr) -> ir.Expr:
    return _call("rcp", x)


def _abs(x: ir.Expr) -> ir.Expr:
    return tirx.abs(x)


def _let(value: ir.Expr, body: Callable[[ir.Expr], ir.Expr]) -> ir.Expr:
    """Compute a value once for an expression that uses it several times."""
    variable = tirx.Var("x", "float32")
    return tirx.Let(variable, value, body(variable))


def _polynomial(x: ir.Expr, *coefficients: float) -> ir.Expr:
    """Evaluate a polynomial, highest power first."""
    total: ir.Expr = _f(coefficients[0])
    for coefficient in coefficients[1:]:
        total = total * x + _f(coefficient)
    return total


def _square(x: ir.Expr) -> ir.Expr:
    return _let(x, lambda root: root * root)


def _exp(x: ir.Expr) -> ir.Expr:
    return _square(_ex2(x * _f(0.72134752)))


def _tail_ratio(x: ir.Expr, scale: float, above: float) -> ir.Expr:
    """Compute ``above / (1 + power)`` of a power below 1, or times the power for x below 0."""

    def of(power: ir.Expr) -> ir.Expr:
        ratio = _f(above) * _rcp(_f(1) + power)
        return _let(ratio, lambda r: tirx.Select(x < _f(0), power * r, r))

    return _let(_square(_ex2(_abs(x) * _f(scale))), of)


def _sigmoid(x: ir.Expr) -> ir.Expr:
    return _let(x, lambda x: _tail_ratio(x, -0.72134752, 1))


def _one_plus_tanh(x: ir.Expr) -> ir.Expr:
    return _let(x, lambda x: _tail_ratio(x, -1.4426950, 2))


def _exp_float16(x: ir.Expr) -> ir.Expr:
    return _ex2(x * _f(1.4426950))


def _sigmoid_float16(x: ir.Expr) -> ir.Expr:
    return _rcp(_f(1) + _ex2(x * _f(-1.4426950)))


def _clipped(x: ir.Expr, limit: float) -> ir.Expr:
    """Clip to an interval around 0; NaN stays."""
    most, least = _f(limit), _f(-limit)
    return tirx.Select(x > most, most, tirx.Select(x < least, least, x))


def _odd_ratio(limit: float, above: Sequence[float], below: Sequence[float]) -> Function:
    """Make ``y * above(y**2) / below(y**2)`` of ``y = clip(x)``."""

    def function(x: ir.Expr) -> ir.Expr:
        def of(y: ir.Expr) -> ir.Expr:
            return _let(
                y * y,
                lambda square: y * _polynomial(square, *above) * _rcp(_polynomial(square, *below)),
            )

        return _let(x, lambda x: _let(_clipped(x, limit), of))

    return function


def _normal_cdf(x: ir.Expr) -> ir.Expr:
    """Half of ``1 + erf(x / sqrt(2))``."""
    coefficients = (-0.09049869, 0.200432165, 0.083456685, 0.15764137, 0.1489692)

    def of(x: ir.Expr) -> ir.Expr:
        near = _rcp(_abs(x) * _f(0.37476659) + _f(1))
        scaled = _let(near, lambda n: _polynomial(n, *coefficients) * n)
        tail = scaled * _square(_ex2(x * x * _f(-0.36067376)))
        return _let(tail, lambda t: tirx.Select(x < _f(0), t, _f(1) - t))

    return _let(x, of)


def _gelu(*coefficients: float) -> Function:
    """Make ``max(x, 0) - part * 2 ** polynomial(part)``, part being a 4096th of |x|, at most 1."""

    def function(x: ir.Expr) -> ir.Expr:
        def of(x: ir.Expr) -> ir.Expr:
            part = _call("fmed3", _abs(x) * _f(0.000244140625), _f(0), _f(1))
            above = tirx.Select(x < _f(0), _f(0), x)
            return _let(part, lambda p: above - p * _ex2(_polynomial(p, *coefficients)))

        return _let(x, of)

    return function


FUNCTIONS: Mapping[str, Function] = {
    "exp": _exp,
    "sigmoid": _sigmoid,
    "exp_float16": _exp_float16,
    "sigmoid_float16": _sigmoid_float16,
    "tanh": _odd_ratio(
        4.75,
        (0.000694804121, 0.103178663, 0.999961297),
        (0.0130562071, 0.436264292, 1.0),
    ),
    "erf": _odd_ratio(
        2.8,
        (0.0295823804, 0.17079267, 1.12834321),
        (0.00359766, 0.08901873, 0.48416531, 1.0),
    ),
    "normal_cdf": _normal_cdf,
    "gelu_float16": _gelu(
        *(-3.69513787e14, 1.64020775e12, -3.31481139e9, -7786668.5, -4707.02197, 10.9998789)
    ),
    "gelu_bfloat16": _gelu(
        *(-6.02219561e18, 8.25155645e16, -4.7594566e14, 1.52291626e12, -3.03892045e9),
        *(-7940612.5, -4680.44727, 10.9991913),
    ),
    "one_plus_tanh": _one_plus_tanh,
    "div": lambda x, y: _call("fdiv.fast", x, y),
}


@tirx.transform.prim_func_pass(opt_level=0, name="AmdHalfFunctions")
class AmdHalfFunctions:
    """Compute what :class:`~tvm_fusion.schedule.math.half_math.HalfMath` calls on AMD GPUs."""

    def transform_function(
        self, func: tirx.PrimFunc, _mod: ir.IRModule, _ctx: PassContext
    ) -> tirx.PrimFunc:
        """Rewrite one device function of an AMD GPU; others are unchanged."""
        if target_kind(func) != "rocm":
            return func
        return func.with_body(tvm_ffi.structural_map(func.body, (ir.Call, _computed), order="post"))


def _computed(call: ir.Call) -> ir.Expr:
    called = called_function(call)
    return call if called is None else FUNCTIONS[called[0]](*called[1])
