"""Convert operators that mix real and imaginary parts."""

import math
from typing import Any

from tvm import relax

from ..call import Call, real_name_of
from ..complex_pairs import Pair, joined, pair_of, parted
from .registry import COMPLEX, REAL

op = relax.op


def _pairs(call: Call, *names: str) -> tuple[Pair, ...]:
    dtype = real_name_of(call.out.dtype)
    return tuple(pair_of(call, call[name], dtype) for name in names)


def _emitted(call: Call, real: Any, imag: Any) -> Pair:
    return Pair(call.emit(real), call.emit(imag))


def multiply(call: Call, x: Pair, y: Pair) -> Pair:
    """Multiply elements."""
    real = op.subtract(op.multiply(x.real, y.real), op.multiply(x.imag, y.imag))
    imag = op.add(op.multiply(x.real, y.imag), op.multiply(x.imag, y.real))
    return _emitted(call, real, imag)


def scaled(call: Call, x: Pair, factor: Any) -> Pair:
    """Multiply by a real tensor."""
    return _emitted(call, op.multiply(x.real, factor), op.multiply(x.imag, factor))


def magnitude(call: Call, x: Pair) -> Any:
    """Return |x| without squares that overflow."""
    dtype = str(x.real.ty.dtype.dtype)
    one, zero = relax.const(1, dtype), relax.const(0, dtype)
    a, b = call.emit(op.abs(x.real)), call.emit(op.abs(x.imag))
    high, low = call.emit(op.maximum(a, b)), call.emit(op.minimum(a, b))
    ratio = op.divide(low, op.where(op.equal(high, zero), one, high))
    value = op.multiply(high, op.sqrt(op.add(one, op.multiply(ratio, ratio))))
    return call.emit(op.where(op.isinf(high), high, value))


@COMPLEX.register("mul.Tensor", "mul.Scalar")
def mul(call: Call) -> Pair:
    """Multiply; by a real number each part."""
    dtype = real_name_of(call.out.dtype)
    x, y = call["self"], call["other"]
    if isinstance(x, Pair) and not isinstance(y, Pair | complex):
        return scaled(call, pair_of(call, x, dtype), call.as_tensor(y, dtype))
    if isinstance(y, Pair) and not isinstance(x, Pair | complex):
        return scaled(call, pair_of(call, y, dtype), call.as_tensor(x, dtype))
    return multiply(call, *_pairs(call, "self", "other"))


def _reciprocal(call: Call, x: Pair) -> Pair:
    """Divide the conjugate by the square of the magnitude, in two steps that do not overflow."""
    one = relax.const(1, str(x.real.ty.dtype.dtype))
    inverse = call.emit(op.divide(one, magnitude(call, x)))
    real = op.multiply(op.multiply(x.real, inverse), inverse)
    imag = op.negative(op.multiply(op.multiply(x.imag, inverse), inverse))
    return _emitted(call, real, imag)


@COMPLEX.register("div.Tensor", "div.Scalar", "true_divide.Tensor")
def divide(call: Call) -> Pair:
    """Divide; by a real number each part."""
    y = call["other"]
    if not isinstance(y, Pair | complex):
        dtype = real_name_of(call.out.dtype)
        (x,) = _pairs(call, "self")
        y = call.as_tensor(y, dtype)
        return _emitted(call, op.divide(x.real, y), op.divide(x.imag, y))
    x, y = _pairs(call, "self", "other")
    return multiply(call, x, _reciprocal(call, y))


@COMPLEX.register("reciprocal")
def reciprocal(call: Call) -> Pair:
    """Divide one by each."""
    return _reciprocal(call, *_pairs(call, "self"))


@COMPLEX.register("_conj", "_conj_physical", "conj_physical")
def conjugate(call: Call) -> Pair:
    """Negate the imaginary part."""
    (x,) = _pairs(call, "self")
    return Pair(x.real, call.emit(op.negative(x.imag)))


@COMPLEX.register("abs")
def absolute(call: Call) -> Any:
    """Take the magnitude."""
    return magnitude(call, pair_of(call, call["self"], call.dtype))


@COMPLEX.register("angle")
def angle(call: Call) -> Any:
    """Take the angle with the positive real axis."""
    x = pair_of(call, call["self"], call.dtype)
    return op.atan2(x.imag, x.real)


@REAL.register("angle")
def angle_of_reals(call: Call) -> Any:
    """Take pi of negative numbers, zero of others."""
    x = call.tensor("self", call.dtype)
    zero = relax.const(0, call.dtype)
    angle = op.where(op.less(x, zero), relax.const(math.pi, call.dtype), zero)
    return op.where(op.isnan(x), x, angle)


@COMPLEX.register("exp")
def exp(call: Call) -> Pair:
    """Raise e to a complex power."""
    (x,) = _pairs(call, "self")
    size = call.emit(op.exp(x.real))
    return _emitted(call, op.multiply(size, op.cos(x.imag)), op.multiply(size, op.sin(x.imag)))


@COMPLEX.register("log")
def log(call: Call) -> Pair:
    """Take the logarithm."""
    (x,) = _pairs(call, "self")
    return _emitted(call, op.log(magnitude(call, x)), op.atan2(x.imag, x.real))


@COMPLEX.register("sgn", "sign")
def sign(call: Call) -> Pair:
    """Divide by the magnitude; of zero zero."""
    (x,) = _pairs(call, "self")
    size = magnitude(call, x)
    dtype = str(size.ty.dtype.dtype)
    size = call.emit(op.where(op.equal(size, relax.const(0, dtype)), relax.const(1, dtype), size))
    return _emitted(call, op.divide(x.real, size), op.divide(x.imag, size))


@COMPLEX.register("eq.Tensor", "eq.Scalar", "ne.Tensor", "ne.Scalar")
def equal(call: Call) -> Any:
    """Compare both parts."""
    pairs = [call.meta(name) for name in ("self", "other")]
    dtype = next(real_name_of(x.dtype) for x in pairs if hasattr(x, "dtype") and x.is_complex())
    x, y = (pair_of(call, call[name], dtype) for name in ("self", "other"))
    if call.node.target.__name__.startswith("eq"):
        return op.logical_and(op.equal(x.real, y.real), op.equal(x.imag, y.imag))
    return op.logical_or(op.not_equal(x.real, y.real), op.not_equal(x.imag, y.imag))


@COMPLEX.register("isnan", "isinf")
def either(call: Call) -> Any:
    """Test whether either part is."""
    x = call["self"]
    test = getattr(op, call.node.target.__name__.split(".")[0])
    return op.logical_or(test(x.real), test(x.imag))


@COMPLEX.register("isfinite")
def both(call: Call) -> Any:
    """Test whether both parts are."""
    x = call["self"]
    return op.logical_and(op.isfinite(x.real), op.isfinite(x.imag))


@COMPLEX.register("mm", "bmm", "matmul")
def product(call: Call) -> Pair:
    """Multiply matrices: four real products."""
    names = ("self", "mat2" if "mat2" in call else "other")
    x, y = _pairs(call, *names)
    real = op.subtract(op.matmul(x.real, y.real), op.matmul(x.imag, y.imag))
    imag = op.add(op.matmul(x.real, y.imag), op.matmul(x.imag, y.real))
    return _emitted(call, real, imag)


@COMPLEX.register("view_as_real")
def view_as_real(call: Call) -> Any:
    """Lay the parts out next to each other."""
    return joined(call.importer, call["self"])


@COMPLEX.register("view_as_complex")
def view_as_complex(call: Call) -> Pair:
    """Take the parts out of the last axis."""
    return parted(call.importer, call.tensor("self"))


@COMPLEX.register("real", "imag")
def part(call: Call) -> Any:
    """Take one part."""
    x = call["self"]
    return x.real if call.node.target.__name__.startswith("real") else x.imag


@COMPLEX.register("complex")
def complex_(call: Call) -> Pair:
    """Make complex numbers of their parts."""
    shape = call.shape()
    dtype = real_name_of(call.out.dtype)
    parts = (call.tensor(name, dtype) for name in ("real", "imag"))
    return Pair(*(call.emit(op.broadcast_to(x, shape)) for x in parts))


@COMPLEX.register("polar")
def polar(call: Call) -> Pair:
    """Make complex numbers of magnitudes and angles."""
    size, phase = call.tensor("abs"), call.tensor("angle")
    return _emitted(call, op.multiply(size, op.cos(phase)), op.multiply(size, op.sin(phase)))


@COMPLEX.register("_to_copy", "to.dtype", "convert_element_type")
def cast(call: Call) -> Any:
    """Cast both parts; to a real dtype the real part, as torch does."""
    for name in ("dtype", "device", "layout"):
        call.raw(name) if name in call else None
    name = "a" if "a" in call else "self"
    if call.out.is_complex():
        dtype = real_name_of(call.out.dtype)
        return pair_of(call, call[name], dtype)
    return call.cast(call[name].real, call.dtype)
