"""Quantised products become products of bytes: modules before and after, numbers, refusals."""

import numpy as np
import pytest
import tvm
from group_kernels import CPU
from relax_modules import typed_module as module
from tvm import relax, tirx
from tvm.ir import assert_structural_equal

from tests.rewrite.bytes.byte_modules import rewritten, tensor
from tvm_fusion.pipeline import relax_pipeline

op = relax.op
M = tirx.Var("m", "int64")
RNG = np.random.default_rng(0)
W = RNG.integers(-128, 128, (50, 36)).astype("int8")
SCALES = RNG.uniform(0.01, 0.02, 36).astype("float32")


def widened(w, zero=None, weight_zero=None):
    """What importers make of ONNX's MatMulInteger."""

    def body(emit, x, *zeros):
        x = emit(op.astype(x, "int32"))
        if zero is not None or zeros:
            x = emit(op.subtract(x, zeros[0] if zeros else relax.const(np.int32(zero))))
        matrix = relax.const(w.astype("int32"))
        if weight_zero is not None:
            matrix = emit(op.subtract(matrix, relax.const(np.int32(weight_zero))))
        return op.matmul(x, matrix, out_dtype="int32")

    return body


def dequantised(w, scales, weight_zero=0):
    """A product between QuantizeLinear and DequantizeLinear."""

    def body(emit, x):
        scale_, zero_ = relax.const(np.float32(0.02)), relax.const(np.uint8(128))
        x = emit(op.quantize(x, scale_, zero_, axis=1, out_dtype="uint8"))
        x = emit(op.dequantize(x, scale_, zero_, axis=1, out_dtype="float32"))
        zeros = np.full(scales.shape, weight_zero, w.dtype)
        w_ = op.dequantize(relax.const(w), relax.const(scales), relax.const(zeros), axis=1)
        return op.matmul(x, emit(w_))

    return body


def test_narrow_constants():
    def expected(emit, x):
        return op.matmul(x, relax.const(W), out_dtype="int32")

    after, codes = rewritten(module(widened(W), tensor(7, 50)))
    assert_structural_equal(after, module(expected, tensor(7, 50)))
    assert codes == ["bytes"]


def test_zero_points():
    """A known one becomes a row of constants, one of an input times the sums of the columns."""
    sums = W.astype("int32").sum(axis=0, keepdims=True, dtype="int32")

    def known(emit, x):
        total = emit(op.matmul(x, relax.const(W), out_dtype="int32"))
        return op.subtract(total, relax.const(3 * sums))

    def given(emit, x, zero):
        total = op.matmul(x, relax.const(W), out_dtype="int32")
        row = emit(op.multiply(zero, relax.const(sums)))
        return op.subtract(emit(total), row)

    after, _ = rewritten(module(widened(W, 3), tensor(M, 50)))
    assert_structural_equal(after, module(known, tensor(M, 50)))
    for shape in ((), (7, 1)):
        types = tensor(7, 50), tensor(*shape, dtype="int32")
        after, _ = rewritten(module(widened(W), *types))
        assert_structural_equal(after, module(given, *types))


def test_a_zero_point_goes_into_weights_that_stay_bytes():
    w = W.astype("int32") + 128

    def expected(emit, x):
        return op.matmul(x, relax.const(W), out_dtype="int32")

    after, _ = rewritten(module(widened(w, None, 128), tensor(7, 50)))
    assert_structural_equal(after, module(expected, tensor(7, 50)))


def untouched(mod, *codes):
    after, found = rewritten(mod)
    assert after.same_as(mod)
    assert found == list(codes)


def test_wide_columns_stay():
    w = np.where(RNG.random(W.shape) < 0.5, -128, 255)
    untouched(module(widened(w), tensor(7, 50)), "wide_weights")


def test_zero_points_of_terms_stay():
    """Zero points that differ along the terms cannot be taken out of the sum."""
    untouched(module(widened(W), tensor(7, 50), tensor(50, dtype="int32")))


def test_scales_of_terms_stay():
    def body(emit, x):
        x = emit(op.dequantize(x, *(relax.const(a) for a in (scales, zeros)), axis=1))
        w = op.dequantize(relax.const(W), relax.const(np.float32(1)), relax.const(np.int8(0)))
        return op.matmul(x, emit(w))

    scales, zeros = np.linspace(1, 2, 50, dtype="float32"), np.zeros(50, "uint8")
    untouched(module(body, tensor(7, 50)), "several_scales")


def test_too_many_terms_stay():
    """Of more terms an int32 may overflow, which a float32 does not."""
    w = np.full((33100, 4), 127, "int8")
    untouched(module(dequantised(w, SCALES[:4]), tensor(1, 33100, dtype="float32")), "many_terms")


def compiled(mod):
    built = tvm.compile(
        mod, CPU.tvm_target(), relax_pipeline="tvm_fusion", tir_pipeline="tvm_fusion"
    )
    run = relax.VirtualMachine(built, tvm.cpu())["main"]
    return lambda *args: run(*map(tvm.runtime.tensor, args)).numpy()


def kernels(mod):
    planned = relax_pipeline(target=CPU.tvm_target(), lower=False)(mod)
    return [f for f in planned.functions.values() if isinstance(f, tirx.PrimFunc)]


@pytest.mark.parametrize("is_per_column", [True, False])
@pytest.mark.parametrize(("weight", "weight_zero"), [("int8", 0), ("uint8", 128)])
@pytest.mark.slow
def test_dequantised_products(weight, weight_zero, is_per_column):
    """Nearer to the exact result than float32, in two kernels: one quantises, one multiplies."""
    w = (W.astype("int32") + weight_zero).astype(weight)
    scales = SCALES if is_per_column else SCALES[0]
    mod = module(dequantised(w, scales, weight_zero=weight_zero), tensor(M, 50, dtype="float32"))
    assert len(kernels(mod)) == 2
    run = compiled(mod)
    for rows in (1, 20):
        x = RNG.standard_normal((rows, 50)).astype("float32")
        code = np.clip(np.round(x / np.float32(0.02)) + 128, 0, 255)
        expected = ((code - 128) * np.float64(np.float32(0.02))) @ (W * scales.astype("float64"))
        got = run(x)
        assert np.abs(got - expected).max() <= 3e-7 * np.abs(expected).max()


@pytest.mark.parametrize("zero", [0, 7, 255])
def test_exact(zero):
    mod = module(widened(W, zero), tensor(M, 50))
    assert len(kernels(mod)) == 1
    run = compiled(mod)
    x = RNG.integers(0, 256, (13, 50)).astype("uint8")
    np.testing.assert_array_equal(run(x), (x.astype("int32") - zero) @ W.astype("int32"))


@pytest.mark.parametrize("weight", ["int8", "uint8"])
@pytest.mark.parametrize("zero", [None, 7])
def test_weights_of_nine_bits(weight, zero):
    """Minus their zero point they are no bytes: the middle of each column is taken out."""
    w = RNG.integers(*((-128, 128) if weight == "int8" else (0, 256)), W.shape)
    w[:2] = [[np.iinfo(weight).min], [np.iinfo(weight).max]]
    weight_zero = -100 if weight == "int8" else 3
    mod = module(widened(w.astype(weight), zero, weight_zero), tensor(M, 50))
    _, codes = rewritten(mod)
    assert codes == ["bytes"]
    x = RNG.integers(0, 256, (13, 50)).astype("uint8")
    wide = x.astype("int32") - (zero or 0)
    np.testing.assert_array_equal(compiled(mod)(x), wide @ (w - weight_zero).astype("int32"))


@pytest.mark.slow
def test_siblings_are_joined():
    """Query, key and value of one quantised tensor: one product, with all that follows."""
    weights = [RNG.integers(-128, 128, (256, 64)).astype("int8") for _ in range(3)]

    def body(emit, x):
        wide = emit(op.subtract(emit(op.astype(x, "int32")), relax.const(np.int32(5))))
        found = [emit(op.matmul(wide, relax.const(w.astype("int32")))) for w in weights]
        return op.add(emit(op.add(*found[:2])), found[2])

    mod = module(body, tensor(32, 256))
    assert len(kernels(mod)) == 1
    x = RNG.integers(0, 256, (32, 256)).astype("uint8")
    expected = sum((x.astype("int32") - 5) @ w.astype("int32") for w in weights)
    np.testing.assert_array_equal(compiled(mod)(x), expected)
