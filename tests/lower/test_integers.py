"""Arithmetic that wraps around as each target's code generator is given it."""

import pytest
import tvm
from tvm import ir, tirx
from tvm.target import Target

from tvm_fusion.core.tir.integers import wrapping
from tvm_fusion.lower.integers import LowerIntegers

TARGETS = {
    "x86-64": {"kind": "llvm", "mtriple": "x86_64-linux-gnu"},
    "aarch64": {"kind": "llvm", "mtriple": "aarch64-linux-gnu"},
    "cuda": {"kind": "cuda", "arch": "sm_90a"},
    "rocm": {"kind": "rocm", "mcpu": "gfx942"},
}


def lowered(make, target, dtype="int32", source=None):
    """What is stored of an expression of two loads, and the loads."""
    x, y = (tirx.decl_buffer((8,), source or dtype, name) for name in "xy")
    z = tirx.decl_buffer((8,), dtype, "z")
    a, b = (tirx.BufferLoad(t, [0]) for t in (x, y))
    func = tirx.PrimFunc([x, y, z], tirx.BufferStore(z, make(a, b), [0]))
    func = func.with_attr("target", Target(TARGETS[target]))
    return LowerIntegers()(tvm.IRModule({"main": func}))["main"].body.value, a, b


def cast(dtype, value):
    return tirx.Cast(dtype, value)


def test_cuda_adds_unsigned_numbers():
    got, a, b = lowered(lambda a, b: wrapping("add", "int32", a, b), "cuda")
    ir.assert_structural_equal(got, cast("int32", cast("uint32", a) + cast("uint32", b)))
    got, a, b = lowered(lambda a, b: wrapping("mul", "int8", a, b), "cuda", "int8")
    ir.assert_structural_equal(got, cast("int8", cast("uint32", a) * cast("uint32", b)))


@pytest.mark.parametrize("target", ["x86-64", "aarch64", "rocm"])
@pytest.mark.parametrize(
    ("dtype", "wide"), [("int32", "int64"), ("int64", "int128"), ("uint32", "uint64")]
)
def test_llvm_multiplies_in_twice_the_bits(target, dtype, wide):
    got, a, b = lowered(lambda a, b: wrapping("mul", dtype, a, b), target, dtype)
    ir.assert_structural_equal(got, cast(dtype, cast(wide, a) * cast(wide, b)))


def test_a_difference_of_unsigned_numbers_has_a_sign():
    got, a, b = lowered(lambda a, b: wrapping("sub", "uint64", a, b), "x86-64", "uint64")
    ir.assert_structural_equal(got, cast("uint64", cast("int128", a) - cast("int128", b)))


@pytest.mark.parametrize("target", TARGETS)
def test_sums_of_reductions_wrap_around_too(target):
    got, _, _ = lowered(lambda a, b: tirx.Add(a, b), target)
    assert isinstance(got, tirx.Cast)


@pytest.mark.parametrize("target", TARGETS)
def test_bits_of_floats_stay(target):
    """Exponents are made of integers in kernels, and cannot overflow."""

    def exponent(a, _b):
        return tirx.reinterpret("int32", a) + tirx.const(127, "int32")

    got, a, b = lowered(exponent, target, "int32", "float32")
    ir.assert_structural_equal(got, exponent(a, b))


@pytest.mark.parametrize("target", TARGETS)
def test_quotients_by_constants_have_no_guard(target):
    def quotient(name, divisor, dtype="int32"):
        return lowered(
            lambda a, _: wrapping(name, dtype, a, tirx.const(divisor, dtype)), target, dtype
        )[0]

    assert isinstance(quotient("truncdiv", 3), tirx.Div)
    assert isinstance(quotient("truncmod", -7), tirx.Mod)
    assert isinstance(quotient("floordiv", 3, "uint32"), tirx.Div)
    assert isinstance(quotient("floordiv", 8), tirx.RShift)
    assert isinstance(quotient("floormod", 8), tirx.BitwiseAnd)
    assert isinstance(quotient("floormod", 3), tirx.Select)


@pytest.mark.parametrize("target", TARGETS)
def test_casts_choose_what_does_not_fit(target):
    got, a, _ = lowered(lambda a, _: wrapping("cast", "int32", a), target, "int32", "float32")
    assert isinstance(got, tirx.Select)
    ir.assert_structural_equal(got.true_value, cast("int32", a))
    assert int(got.false_value) == -(2**31)


@pytest.mark.parametrize("target", TARGETS)
def test_clamped_numbers_are_cast_as_they_are(target):
    """Quantisation: a byte is packed from 32 bits without a comparison."""

    def quantised(low, high, dtype):
        def make(a, _b):
            clamped = tirx.max(
                tirx.min(tirx.round(a), tirx.const(high, "float32")), tirx.const(low, "float32")
            )
            return wrapping("cast", dtype, clamped)

        return lowered(make, target, dtype, "float32")[0]

    assert not isinstance(quantised(0.0, 255.0, "uint8").value, tirx.Cast)
    assert not isinstance(quantised(-128.0, 127.0, "int8").value.value, tirx.Select)
    assert isinstance(quantised(-128.0, 1e9, "int8").value, tirx.Select)
