"""Convert operators on the bits of numbers, and on integers by loops."""

import functools
import math
from typing import Any

from tvm import DataType, relax, te, tirx

from ....core.tir.task_kernel import Local, loop, repeat_while, store, when
from ...registry import Unsupported
from ...tensor_types import dtype_of, is_float
from ..call import Call, name_of, static
from ..kernel import emit_kernel, emit_map
from ..registry import register
from .arithmetic import operands

op = relax.op
_BITS = {"float16": "int16", "float32": "int32", "float64": "int64"}


@register("gcd")
def gcd(call: Call) -> Any:
    """Find the greatest common divisor by Euclid's algorithm."""
    x, y = operands(call, call.dtype, *(a.name for a in call.node.target._schema.arguments[:2]))
    return emit_map(call, "gcd", [x, y], call.dtype, lambda a, b: _gcd(a, b, call.dtype))


def _gcd(a: Any, b: Any, dtype: str) -> Any:
    x, y = Local(dtype, a), Local(dtype, b)
    with repeat_while(y.value != tirx.const(0, dtype)):
        divisor = y.value
        if dtype.startswith("int"):  # the smallest number by -1 ends the process
            one = tirx.const(1, dtype)
            divisor = tirx.Select(divisor == tirx.const(-1, dtype), one, divisor)
        rest = Local(dtype, tirx.truncmod(x.value, divisor))
        x.set(y.value)
        y.set(rest.value)
    return tirx.abs(x.value) if dtype.startswith("int") else x.value


@register("lcm")
def lcm(call: Call) -> Any:
    """Find the least common multiple."""
    dtype = call.dtype

    def body(a: Any, b: Any) -> Any:
        one, zero = tirx.const(1, dtype), tirx.const(0, dtype)
        common = Local(dtype, _gcd(a, b, dtype))
        with when(common.value == zero):
            common.set(one)
        value = tirx.truncdiv(a, common.value) * b
        return tirx.abs(value) if dtype.startswith("int") else value

    return emit_map(call, "lcm", list(operands(call, dtype)), dtype, body)


@register("pow.Tensor_Tensor", "pow.Tensor_Scalar", "pow.Scalar")
def power(call: Call) -> Any:
    """Raise to a power; integers by squaring, of which negative powers leave 1 and -1 only."""
    dtype = call.dtype
    if is_float(dtype):
        return op.power(*operands(call, dtype, "self", "exponent"))
    exponent = call["exponent"]
    if isinstance(exponent, int) and 0 <= exponent <= 64:
        return _by_multiplication(call, exponent)

    def body(x: Any, y: Any) -> Any:
        one, zero, two = (tirx.const(v, dtype) for v in (1, 0, 2))
        value, base, left = Local(dtype, one), Local(dtype, x), Local(dtype, y)
        with repeat_while(left.value > zero):
            with when(tirx.truncmod(left.value, two) == one):
                value.set(value.value * base.value)
            base.set(base.value * base.value)
            left.set(tirx.truncdiv(left.value, two))
        if dtype.startswith("int"):
            with when(y < zero):
                value.set(zero)
                with when(x == one):
                    value.set(one)
                with when(x == tirx.const(-1, dtype)):
                    value.set(tirx.Select(tirx.truncmod(y, two) == zero, one, -one))
        return value.value

    return emit_map(call, "power", list(operands(call, dtype, "self", "exponent")), dtype, body)


def _by_multiplication(call: Call, exponent: int) -> Any:
    x, result = call.tensor("self", call.dtype), None
    while exponent:
        if exponent & 1:
            result = x if result is None else call.emit(op.multiply(result, x))
        exponent >>= 1
        if exponent:
            x = call.emit(op.multiply(x, x))
    return op.ones_like(x) if result is None else result


@register("view.dtype")
def view_dtype(call: Call) -> Any:
    """Read bits as another type: of the last axis, several elements as one, or one as several."""
    x, dtype = call.tensor("self"), call.dtype
    call.raw("dtype")
    source = dtype_of(x)
    if source == dtype:
        return x
    if call.out.is_complex() or call.meta("self").is_complex():
        raise Unsupported("of complex numbers", "take view_as_real first")
    if "bool" in (source, dtype):
        raise Unsupported("of truth values", "cast with .to(dtype)")
    size, wanted = (int(DataType(t).itemsize) for t in (source, dtype))
    bits, parts = (f"uint{8 * n}" for n in (size, wanted))
    many = max(size, wanted) // min(size, wanted)

    def compute(x: te.Tensor) -> te.Tensor:
        def element(*at: Any) -> Any:
            *around, last = at
            if size >= wanted:
                whole = tirx.reinterpret(bits, x(*around, tirx.floordiv(last, many)))
                shift = tirx.Cast(bits, tirx.floormod(last, many) * (8 * wanted))
                return tirx.reinterpret(dtype, tirx.Cast(parts, whole >> shift))
            each = (
                tirx.Cast(parts, tirx.reinterpret(bits, x(*around, last * many + i)))
                << tirx.const(8 * size * i, parts)
                for i in range(many)
            )
            return tirx.reinterpret(dtype, functools.reduce(tirx.bitwise_or, each))

        return te.compute(call.shape(), element, name="view")

    return call.importer.block_builder.emit_te(compute, x, primfunc_name_hint="view_dtype")


@register("nextafter")
def nextafter(call: Call) -> Any:
    """Step to the next number towards another: one up or down in the order of their bits."""
    dtype = call.dtype
    kind = _BITS[dtype]

    def body(x: Any, y: Any) -> Any:
        bits = Local(kind, tirx.reinterpret(kind, x))
        zero = tirx.const(0, dtype)
        step = Local(kind, 1)
        # Away from zero the bits grow, whatever the sign.
        with when(tirx.any(tirx.all(x > zero, y < x), tirx.all(x < zero, y > x))):
            step.set(-1)
        result = Local(kind, bits.value + step.value)
        with when(x == zero):
            lowest = tirx.const(-(2 ** (int(kind[3:]) - 1)), kind)
            result.set(tirx.Select(y < zero, lowest + tirx.const(1, kind), tirx.const(1, kind)))
        value = Local(dtype, tirx.reinterpret(dtype, result.value))
        with when(x == y):
            value.set(y)
        with when(tirx.isnan(x)):
            value.set(x)
        with when(tirx.isnan(y)):
            value.set(y)
        return value.value

    return emit_map(call, "nextafter", list(operands(call, dtype)), dtype, body)


@register("frexp.Tensor")
def frexp(call: Call) -> Any:
    """Take numbers apart into fractions from 1/2 to 1 and powers of two."""
    fake = call.out[0]
    dtype, shape = name_of(fake.dtype), static(fake.shape)
    wide = "float64" if dtype == "float64" else "float32"
    kind, mantissa, bias = ("int64", 52, 1022) if wide == "float64" else ("int32", 23, 126)
    size = math.prod(shape)
    if size == 0:
        return call.tensor("self"), op.zeros(shape, "int32")
    x = call.emit(op.reshape(call.tensor("self", wide), [size]))

    def body(i: Any, x: Any, fraction: Any, exponent: Any) -> None:
        value, shift = Local(wide, x[i]), Local(kind, 0)
        tiny = tirx.const(2.0 ** (1 - bias), wide)
        with when(tirx.all(tirx.abs(value.value) < tiny, value.value != tirx.const(0, wide))):
            value.set(value.value * tirx.const(2.0**mantissa, wide))
            shift.set(mantissa)
        bits = Local(kind, tirx.reinterpret(kind, value.value))
        mask = tirx.const(2 * bias + 3, kind)
        power = Local(kind, tirx.bitwise_and(bits.value >> tirx.const(mantissa, kind), mask))
        keep = tirx.const(~((2 * bias + 3) << mantissa), kind)
        half = tirx.bitwise_or(
            tirx.bitwise_and(bits.value, keep), tirx.const(bias << mantissa, kind)
        )
        is_plain = tirx.all(value.value != tirx.const(0, wide), power.value != mask)
        store(fraction, [i], value.value)
        store(exponent, [i], tirx.const(0, "int32"))
        with when(is_plain):
            store(fraction, [i], tirx.reinterpret(wide, half))
            unbiased = power.value - tirx.const(bias, kind) - shift.value
            store(exponent, [i], tirx.Cast("int32", unbiased))

    outputs = [([size], wide), ([size], "int32")]
    results = emit_kernel(call, "frexp", [size], [x], outputs, body)
    fraction, exponent = (call.emit(op.reshape(y, shape)) for y in results)
    return call.cast(fraction, dtype), exponent


@register("hash_tensor")
def hash_tensor(call: Call) -> Any:
    """Combine the bits of numbers, of floating point in float64, by exclusive or."""
    call.raw("mode")
    fake, keeps = call.meta("self"), call["keepdim"]
    shape = static(fake.shape)
    rank = len(shape)
    axes = sorted({d % rank for d in call["dim"]}) if rank and call["dim"] else list(range(rank))
    rest = [a for a in range(rank) if a not in axes]
    outer, inner = math.prod(shape[a] for a in rest), math.prod(shape[a] for a in axes)
    out = [1 if a in axes else shape[a] for a in range(rank) if keeps or a not in axes]
    if outer * inner == 0:
        return op.zeros(out, "uint64")
    x = call.tensor("self")
    x = call.cast(x, "float64" if is_float(dtype_of(x)) else "int64")
    kind = dtype_of(x)
    moved = call.emit(op.permute_dims(x, [*rest, *axes])) if rank else x
    flat = call.emit(op.reshape(moved, [outer, inner]))

    def body(i: Any, x: Any, y: Any) -> None:
        total = Local("uint64", tirx.const(0, "uint64"))
        with loop(0, inner) as k:
            bits = x[i, k]
            bits = tirx.reinterpret("uint64", bits) if is_float(kind) else tirx.Cast("uint64", bits)
            total.set(tirx.bitwise_xor(total.value, bits))
        store(y, [i], total.value)

    (result,) = emit_kernel(call, "hash_tensor", [outer], [flat], [([outer], "uint64")], body)
    return op.reshape(result, out)
