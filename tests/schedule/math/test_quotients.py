"""Quantization of vectors: without a division, and the same to the last bit."""

import numpy as np
import pytest
import tvm
from hypothesis import given
from hypothesis import strategies as st
from relax_modules import main_module
from tvm import relax

from tvm_fusion.device import parse
from tvm_fusion.schedule.math.quotients import _reciprocal

op = relax.op
INSTRUCTION = "vdivps"


def built(scale, dtype, columns, spec="cpu:x86-64-v3"):
    """A quantization of rows, compiled."""
    x = relax.Var("x", relax.TensorType((4, columns), "float32"))

    def body(emit, x):
        zero = relax.const(np.array(3, dtype))
        return op.quantize(x, relax.const(np.float32(scale)), zero, axis=0, out_dtype=dtype)

    target = parse(spec).tvm_target()
    with target:
        mod = main_module([x], body)
        return tvm.compile(mod, target, relax_pipeline="tvm_fusion", tir_pipeline="tvm_fusion")


def assembly(executable):
    return "".join(one.inspect_source("s") for one in (executable.mod, *executable.mod.imports)
                   if one.kind == "llvm")  # fmt: skip


@pytest.mark.parametrize("scale", [0.037, 1.3e-4, 7.0])
def test_quotients_are_those_of_a_division(scale):
    """Among them ties, whose quotients are halves, infinities and what overflows."""
    columns, scale = 4099, np.float32(scale)
    x = (np.random.default_rng().uniform(-300, 300, (4, columns)) * scale).astype("float32")
    x[0] = np.arange(columns, dtype="float32") * np.float32(0.5) * scale
    x[1, :8] = [np.inf, -np.inf, 3e38, -3e38, 1e-40, -1e-40, 0.0, -0.0]
    executable = built(scale, "int8", columns)
    assert INSTRUCTION not in assembly(executable)
    found = relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(x)).numpy()
    with np.errstate(over="ignore"):
        expected = np.clip(np.rint(x / scale) + 3, -128, 127)
    np.testing.assert_array_equal(found, expected.astype("int8"))


@pytest.mark.parametrize(
    ("scale", "spec"), [(1e-30, "cpu:x86-64-v3"), (0.037, "cpu:x86-64-v2")], ids=["scale", "cpu"]
)
def test_divisions_stay(scale, spec):
    """Where the reciprocal's rest may be denormal, and on CPUs without fused multiply-adds."""
    assert "divps" in assembly(built(scale, "uint8", 64, spec))


@given(st.floats(1e-6, 1e3), st.sampled_from([(-128, 127), (0, 255), (-117, 138)]))
def test_reciprocals_in_two_parts(scale, bounds):
    """The sum rounds as one division does, of any number within the bounds of a byte."""
    scale, rng = np.float32(scale), np.random.default_rng()
    high, low = _reciprocal(float(scale), *bounds)
    assert low >= 0
    x = (rng.uniform(*bounds, 9999) * scale).astype("float32")
    found = (x.astype("float64") * high + (x * np.float32(low)).astype("float64")).astype("float32")
    np.testing.assert_array_equal(np.rint(found), np.rint(x / scale))


def test_dequantized_at_once():
    """What is dequantized by the same zero point stays a float, clamped as its byte would be."""
    x = relax.Var("x", relax.TensorType((4, 67), "float32"))
    scale, zero = relax.const(np.float32(0.3)), relax.const(np.array(250, "uint8"))

    def body(emit, x):
        q = emit(op.quantize(x, scale, zero, axis=0, out_dtype="uint8"))
        y = emit(op.dequantize(q, scale, zero, axis=0, out_dtype="float32"))
        return op.quantize(y, relax.const(np.float32(0.07)), relax.const(np.array(7, "int8")),
                           axis=0, out_dtype="int8")  # fmt: skip

    target = parse("cpu:x86-64-v3").tvm_target()
    with target:
        mod = main_module([x], body)
        built = tvm.compile(mod, target, relax_pipeline="tvm_fusion", tir_pipeline="tvm_fusion")
    given = np.random.default_rng().uniform(-90, 30, (4, 67)).astype("float32")
    given[0, :2] = np.inf, -np.inf
    found = relax.VirtualMachine(built, tvm.cpu())["main"](tvm.runtime.tensor(given)).numpy()
    byte = np.clip(np.rint(given / np.float32(0.3)) + 250, 0, 255) - 250
    y = byte.astype("float32") * np.float32(0.3)
    expected = np.clip(np.rint(y / np.float32(0.07)) + 7, -128, 127)
    np.testing.assert_array_equal(found, expected.astype("int8"))
    assert "vcvtps2dq" in assembly(built)
    assert INSTRUCTION not in assembly(built)
