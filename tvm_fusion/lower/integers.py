"""Arithmetic that wraps around, and casts to integers, written for a target: the last pass but one.

What :mod:`tvm_fusion.core.tir.integers` keeps from TVM's simplifier becomes what its code
generators translate without an assumption about overflow:

    LLVM   trunc(sext(a) + sext(b))        add of twice the bits, which LLVM narrows to one of the
                                           own type without nsw, in vectors as well
    CUDA   (int)((uint)a + (uint)b)        defined in C

A quotient whose divisor may be 0 divides by 1 there and is 0; x / -1 is -x, which wraps around:
machine division ends the process at both, and both are undefined to LLVM.

A float becomes a signed integer of 32 bits, or of 64 for types of 64, truncated; where that holds
no such number (NaN too) it is the smallest one, as on x86. Narrower types take the low bits.
Unsigned types of 32 and 64 bits take 2^(bits - 1) off before and put it back after, if the number
has it. That is what PyTorch, ONNX Runtime and numpy compute on x86. A comparison chooses: GPUs
saturate, and LLVM leaves the result undefined. Numbers that are clamped before are cast as they
are.

Sums of reductions are left as additions until here, since TVM tells reductions by them.
"""

from typing import Any

from tvm import ir, tirx
from tvm.ir.transform import PassContext

from .._tvm.ir.buffer import declare
from .._tvm.ir.structural import structural_map, structural_walk
from ..core.tir.expressions import call_name
from ..core.tir.integer_ranges import limits, range_of
from ..core.tir.integers import PREFIX, bits_of, is_integer, operands_of, with_operands, wraps

_DIVISIONS = (tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod)


# TVM 0.27's CompactBufferAllocation bounds ``i // n`` by cases of the sign of ``n``. With a divisor
# ``(n + 127) // 128`` next to ``n`` there is a case, of a negative ``n``, in which that is zero:
# the simplifier fails on it ("Find divide by zero"). Maxima have no such cases.
@tirx.transform.prim_func_pass(opt_level=0, name="DivideByPositive")
class DivideByPositive:
    """Divide by at least one where a divisor is computed from a variable that divides as well.

    Such are the coordinates of a tile in an image of equal sides: ``i // ((n + 127) // 128) % n``.
    Other divisions stay as they are, which TVM simplifies better.
    """

    def transform_function(
        self, func: tirx.PrimFunc, _mod: ir.IRModule, _ctx: PassContext
    ) -> tirx.PrimFunc:
        """Change divisors that are no variables."""
        divisors: list[ir.Expr] = []
        structural_walk(func.body, (_DIVISIONS, lambda node: divisors.append(node.b)))
        alone = [divisor for divisor in divisors if isinstance(divisor, ir.Var)]

        def change(node: Any) -> Any:
            if isinstance(node.b, (ir.Var, tirx.IntImm)) or not is_integer(str(node.b.ty.dtype)):
                return node  # a floating point quotient is the model's, of any divisor
            used = tirx.analysis.undefined_vars(node.b)
            divides = any(var.same_as(other) for var in used for other in alone)
            return _by_one_at_least(node) if divides else node

        if not alone:
            return func
        body = structural_map(func.body, (_DIVISIONS, change))
        return func if body.same_as(func.body) else func.with_body(body)


# Extents of buffers that divide by a symbolic extent, which may be zero when a kernel runs.
#
# TVM 0.27's CompactBufferAllocation shrinks a buffer to the region that is accessed. Of a buffer
# that is walked by one loop over all elements (``i // n``, ``i % n``) the region's bounds divide by
# ``n``. They are computed before the loops, even where those have no trips: the process dies of
# SIGFPE.
@tirx.transform.prim_func_pass(opt_level=0, name="DivideByNoZeroExtent")
class DivideByNoZeroExtent:
    """Divide by at least one in the extents of what a lowered function allocates."""

    def transform_function(
        self, func: tirx.PrimFunc, _mod: ir.IRModule, _ctx: PassContext
    ) -> tirx.PrimFunc:
        """Declare the buffers concerned anew."""
        allocs: list[tirx.AllocBuffer] = []
        structural_walk(func.body, (tirx.AllocBuffer, allocs.append))
        instead: dict[ir.Var, ir.Var] = {}
        for buffer in (alloc.buffer for alloc in allocs):
            shape = [_divided_safely(extent) for extent in buffer.ty.shape]
            if not all(a.same_as(b) for a, b in zip(shape, buffer.ty.shape, strict=True)):
                dtype = str(buffer.ty.dtype)
                instead[buffer] = declare(shape, dtype, buffer.name, buffer.scope())
        if not instead:
            return func
        exchange = (ir.Var, lambda var: instead.get(var, var))
        return func.with_body(structural_map(func.body, exchange))


def _divided_safely(extent: ir.Expr) -> ir.Expr:
    def change(node: Any) -> Any:
        return node if isinstance(node.b, tirx.IntImm) else _by_one_at_least(node)

    return structural_map(extent, (_DIVISIONS, change))


def _by_one_at_least(node: Any) -> Any:
    return type(node)(node.a, tirx.max(node.b, tirx.const(1, str(node.b.ty.dtype))))


_OPERATORS: dict[str, type] = {"add": tirx.Add, "sub": tirx.Sub, "mul": tirx.Mul}


@tirx.transform.prim_func_pass(opt_level=0, name="LowerIntegers")
class LowerIntegers:
    """Write arithmetic that wraps around for the target that a function is to run on."""

    def transform_function(
        self, func: tirx.PrimFunc, _mod: ir.IRModule, _ctx: PassContext
    ) -> tirx.PrimFunc:
        """Rewrite one function whose intrinsics are lowered."""
        lowering = _Lowering(func.attrs.get("target") if func.attrs else None)

        def call(node: ir.Call) -> ir.Expr:
            return lowering.written(node) if wraps(node) else node

        def store(node: tirx.BufferStore) -> tirx.Stmt:
            value, _ = lowering.sums(node.value)
            if value.same_as(node.value):
                return node
            return tirx.BufferStore(node.buffer, value, list(node.indices))

        body = func.body
        if _loads_integers(body):  # before the calls: what these become is not to be rewritten
            body = structural_map(body, (tirx.BufferStore, store), order="post")
        return func.with_body(structural_map(body, (ir.Call, call), order="post"))


def _loads_integers(body: tirx.Stmt) -> bool:
    found: list[ir.TensorLoad] = []
    structural_walk(body, (ir.TensorLoad, found.append))
    return any(is_integer(str(load.ty.dtype)) for load in found)


def _folded(kind: type, a: tirx.IntImm, b: tirx.IntImm) -> ir.Expr:
    """Compute with two literals, modulo 2^bits."""
    dtype = str(a.ty.dtype)
    exact = {tirx.Add: int.__add__, tirx.Sub: int.__sub__, tirx.Mul: int.__mul__}[kind]
    low, high = limits(dtype)
    return tirx.const((exact(int(a), int(b)) - low) % (high - low + 1) + low, dtype)


class _Lowering:
    """Writes expressions for one target."""

    def __init__(self, target: Any) -> None:
        kind = "" if target is None else str(target.kind.name)
        self._in_c = kind == "cuda"

    def written(self, call: ir.Call) -> ir.Expr:
        """Write one call, whose operands are written."""
        name, dtype = call_name(call).removeprefix(PREFIX), str(call.ty.dtype)
        if name == "cast":
            return self._cast(dtype, call.args[0])
        a, b = call.args
        if name in _OPERATORS:
            return self._arithmetic(_OPERATORS[name], a, b)
        if name.startswith("shift"):
            return self._shift(name, a, b)
        return self._quotient(name, a, b)

    def sums(self, expr: ir.Expr) -> tuple[ir.Expr, bool]:
        """Write sums and products of what is loaded, and tell whether an expression is of that.

        Bits of floats, and what was cast from them, are none of it.
        """
        if isinstance(expr, ir.TensorLoad):
            return expr, is_integer(str(expr.ty.dtype))
        dtype = str(expr.ty.dtype)
        found = [self.sums(operand) for operand in operands_of(expr)]
        new = [value for value, _ in found]
        if any(not a.same_as(b) for a, b in zip(new, operands_of(expr), strict=True)):
            expr = with_operands(expr, new)
        is_data = is_integer(dtype) and any(data for _, data in found)
        kind = type(expr)
        if is_data and kind in _OPERATORS.values() and not _fits(expr):
            return self._arithmetic(kind, *new), True
        return expr, is_data

    def _arithmetic(self, kind: type, a: ir.Expr, b: ir.Expr) -> ir.Expr:
        dtype = str(a.ty.dtype)
        bits = bits_of(dtype)
        if isinstance(a, tirx.IntImm) and isinstance(b, tirx.IntImm):
            return _folded(kind, a, b)  # TVM refuses to cast a literal that does not fit
        if self._in_c:
            if dtype.startswith("u") and bits >= 32:
                return kind(a, b)
            wide = _with(dtype, f"uint{max(bits, 32)}")
        elif bits < 32:
            return kind(a, b)
        else:  # products of the largest unsigned numbers take all bits, differences a sign
            is_unsigned = dtype[0] == "u" and kind is tirx.Mul
            wide = _with(dtype, f"{'u' if is_unsigned else ''}int{2 * bits}")
        return tirx.Cast(dtype, kind(tirx.Cast(wide, a), tirx.Cast(wide, b)))

    def _shift(self, name: str, a: ir.Expr, b: ir.Expr) -> ir.Expr:
        dtype = str(a.ty.dtype)
        bits, zero = bits_of(dtype), _const(0, dtype)
        is_signed = not dtype.startswith("u")
        last = _const(bits - 1, dtype)
        inside = tirx.LE(b, last)
        if is_signed:
            inside = tirx.And(tirx.GE(b, zero), inside)
        if name == "shift_right" and is_signed:
            return tirx.RShift(a, tirx.Select(inside, b, last))
        amount = tirx.BitwiseAnd(b, last)
        if name == "shift_right":
            return tirx.Select(inside, tirx.RShift(a, amount), zero)
        if self._in_c and is_signed:
            unsigned = _with(dtype, f"uint{max(bits, 32)}")
            shifted = tirx.LShift(tirx.Cast(unsigned, a), tirx.Cast(unsigned, amount))
            return tirx.Select(inside, tirx.Cast(dtype, shifted), zero)
        return tirx.Select(inside, tirx.LShift(a, amount), zero)

    def _quotient(self, name: str, a: ir.Expr, b: ir.Expr) -> ir.Expr:
        dtype = str(a.ty.dtype)
        low, high = range_of(b, {})
        if low > 0 or high < -1:
            return _divided(name, a, b)
        zero, one = _const(0, dtype), _const(1, dtype)
        is_zero = tirx.EQ(b, zero)
        if dtype.startswith("u"):
            divisor = tirx.Select(is_zero, one, b)
            made = tirx.Mod(a, divisor) if name.endswith("mod") else tirx.Div(a, divisor)
            return tirx.Select(is_zero, zero, made)
        is_minus_one = tirx.EQ(b, _const(-1, dtype))
        divisor = tirx.Select(tirx.Or(is_zero, is_minus_one), one, b)
        made = _divided(name, a, divisor)
        if name.endswith("mod"):
            return made
        negated = self._arithmetic(tirx.Sub, zero, a)
        return tirx.Select(is_zero, zero, tirx.Select(is_minus_one, negated, made))

    def _cast(self, dtype: str, value: ir.Expr) -> ir.Expr:
        source = str(value.ty.dtype)
        if is_integer(source):
            return tirx.Cast(dtype, value)
        bits, is_signed = bits_of(dtype), not dtype.startswith("u")
        if bits < 32 and _is_clamped(value, dtype):
            # Of NaN, 0 everywhere. Instructions that pack saturate, and conversions to unsigned 32
            # bits have all bits set: of both, only eight unsigned bits are 0.
            is_plain = not is_signed and bits == 8
            return tirx.Cast(dtype, value if is_plain else tirx.Cast(_with(dtype, "int32"), value))
        signed = _with(dtype, "int64" if bits == 64 else "int32")
        if is_signed or bits < 32:
            made = self._truncated(signed, value)
            return made if signed == dtype else tirx.Cast(dtype, made)
        half = _const(2.0 ** (bits - 1), source)
        beyond = tirx.GE(value, half)
        taken = self._truncated(signed, tirx.Select(beyond, value - half, value))
        least = _const(limits(signed)[0], signed)
        flipped = tirx.BitwiseXor(taken, tirx.Select(beyond, least, _const(0, signed)))
        return tirx.Cast(dtype, flipped)

    def _truncated(self, dtype: str, value: ir.Expr) -> ir.Expr:
        """Cast to a signed integer of 32 or 64 bits; its smallest for what that cannot hold."""
        source, least = str(value.ty.dtype), limits(dtype)[0]
        first, beyond = (_const(sign * float(least), source) for sign in (1, -1))
        inside = tirx.And(tirx.GE(value, first), tirx.LT(value, beyond))
        return tirx.Select(inside, tirx.Cast(dtype, value), _const(least, dtype))


def _fits(expr: ir.Expr) -> bool:
    low, high = range_of(expr, {}, exact=True)
    least, most = limits(str(expr.ty.dtype))
    return least <= low and high <= most


def _divided(name: str, a: ir.Expr, b: ir.Expr) -> ir.Expr:
    """Divide by a number that is neither 0 nor -1, as the machine does, and put a floor to it."""
    dtype = str(a.ty.dtype)
    is_positive = range_of(b, {})[0] > 0
    if name.startswith("trunc") or (is_positive and range_of(a, {})[0] >= 0):
        return tirx.Mod(a, b) if name.endswith("mod") else tirx.Div(a, b)
    power = _constant(b)
    if is_positive and power is not None and power & (power - 1) == 0:
        if name == "floormod":
            return tirx.BitwiseAnd(a, _const(power - 1, dtype))
        return tirx.RShift(a, _const(power.bit_length() - 1, dtype))
    zero, rest = _const(0, dtype), tirx.Mod(a, b)
    # The remainder has the other sign.
    below = tirx.LT(rest if is_positive else tirx.BitwiseXor(rest, b), zero)
    if not is_positive:
        below = tirx.And(tirx.NE(rest, zero), below)
    if name == "floormod":
        return tirx.Select(below, rest + b, rest)
    quotient = tirx.Div(a, b)
    return tirx.Select(below, quotient - _const(1, dtype), quotient)


def _constant(expr: Any) -> int | None:
    """Return the value of an integer constant, of a vector of one too."""
    value = expr.value if isinstance(expr, tirx.Broadcast) else expr
    return int(value) if isinstance(value, tirx.IntImm) else None


def _is_clamped(value: ir.Expr, dtype: str) -> bool:
    """Whether a float other than NaN lies in the range of a type of integers."""
    low, high = _clamped(value)
    least, most = limits(dtype)
    return low is not None and high is not None and least <= low and high <= most


def _clamped(value: Any) -> tuple[float | None, float | None]:
    """Bound a float by the constants that it is clamped to; None where there is none."""
    if isinstance(value, tirx.Broadcast):
        return _clamped(value.value)
    if isinstance(value, tirx.FloatImm):
        return value.value, value.value
    if call_name(value) in ("round", "nearbyint", "trunc", "floor", "ceil"):
        return _clamped(value.args[0])  # bounds that matter are integers
    if not isinstance(value, (tirx.Min, tirx.Max)):
        return None, None
    (a, c), (b, d) = _clamped(value.a), _clamped(value.b)
    pick, weak = (min, 0) if isinstance(value, tirx.Min) else (max, 1)
    lows, highs = [x for x in (a, b) if x is not None], [x for x in (c, d) if x is not None]
    if weak == 0:  # a minimum is at most either, at least the lesser
        return (min(lows) if len(lows) == 2 else None), (pick(highs) if highs else None)
    return (pick(lows) if lows else None), (max(highs) if len(highs) == 2 else None)


def _const(value: float, dtype: str) -> ir.Expr:
    element, _, lanes = dtype.partition("x")
    scalar = tirx.const(value, element)
    return tirx.Broadcast(scalar, int(lanes)) if lanes else scalar


def _with(like: str, element: str) -> str:
    """Return a type with the lanes of another."""
    lanes = like.partition("x")[2]
    return f"{element}x{lanes}" if lanes else element
