"""Convolutions of quantised images become convolutions of bytes: modules, numbers, refusals."""

import numpy as np
import onnx
import pytest
import tvm
from group_kernels import CPU, CUDA
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper
from relax_modules import typed_module as module
from tvm import relax, tirx
from tvm.ir import assert_structural_equal

import tvm_fusion
from tests.rewrite.bytes.byte_modules import rewritten, tensor
from tvm_fusion import transform
from tvm_fusion.pipeline import relax_pipeline

op = relax.op
N = tirx.Var("n", "int64")
RNG = np.random.default_rng(0)
W = RNG.integers(-128, 128, (6, 8, 3, 3)).astype("int8")
SUMS = W.astype("int32").sum(axis=(1, 2, 3)).reshape(6, 1, 1)
SCALES = RNG.uniform(0.01, 0.02, 6).astype("float32")
PADDED = {"padding": (1, 1, 0, 2)}  # top, left, bottom, right
WIDTHS = [0, 0, 0, 0, 1, 0, 1, 2]


ZERO = relax.const(np.full(1, 3, "uint8"))
IMAGE = (N, 8, 9, 7)


def widened(w, zero=None, **given):
    """What importers make of ONNX's ConvInteger."""

    def body(emit, x, *zeros):
        x = emit(op.astype(x, "int32"))
        if zero is not None or zeros:
            x = emit(op.subtract(x, zeros[0] if zeros else relax.const(np.int32(zero))))
        return op.nn.conv2d(x, relax.const(w.astype("int32")), **given, out_dtype="int32")

    return body


def becomes(before, after, *types, code="bytes"):
    found, codes = rewritten(module(before, *types))
    assert_structural_equal(found, module(after, *types))
    assert codes == [code]


def bytes_of(emit, x, w=W, **given):
    return emit(op.nn.conv2d(x, relax.const(w), **given, out_dtype="int32"))


def test_zeros_stay_padding():
    def expected(emit, x):
        return op.nn.conv2d(x, relax.const(W), **PADDED, out_dtype="int32")

    becomes(widened(W, **PADDED), expected, tensor(*IMAGE))
    becomes(widened(W, 0, **PADDED), expected, tensor(*IMAGE))


def test_a_zero_point_becomes_the_padding():
    def expected(emit, x):
        x = emit(op.nn.pad(x, WIDTHS, "constant", 3.0))
        return op.subtract(bytes_of(emit, x), relax.const(3 * SUMS))

    becomes(widened(W, 3, **PADDED), expected, tensor(*IMAGE))


def test_a_zero_point_of_the_run_time_without_padding():
    def expected(emit, x, zero):
        total = bytes_of(emit, x, strides=(2, 1))
        return op.subtract(total, emit(op.multiply(zero, relax.const(SUMS))))

    types = tensor(*IMAGE), tensor(dtype="int32")
    becomes(widened(W, strides=(2, 1)), expected, *types)


@pytest.mark.parametrize("zero", [0, -5])
def test_signed_images_move_to_unsigned_bytes(zero):
    """As an instruction multiplies them; -128 is 0 then, and what was 0 is 128."""

    def expected(emit, x):
        x = emit(op.bitwise_xor(x, relax.const(np.int8(-128))))
        x = emit(op.nn.pad(emit(op.astype(x, "uint8")), WIDTHS, "constant", zero + 128.0))
        return op.subtract(bytes_of(emit, x), relax.const((zero + 128) * SUMS))

    becomes(widened(W, zero, **PADDED), expected, tensor(*IMAGE, dtype="int8"))


def test_weights_that_are_unsigned_bytes_take_a_signed_image():
    w = W.astype("int16") + 128
    sums = w.astype("int32").sum(axis=(1, 2, 3)).reshape(6, 1, 1)

    def expected(emit, x):
        x = emit(op.astype(emit(op.bitwise_xor(x, relax.const(np.uint8(128)))), "int8"))
        total = bytes_of(emit, x, w.astype("uint8"))
        return op.subtract(total, relax.const(-128 * sums))

    becomes(widened(w), expected, tensor(*IMAGE))


def test_dequantised():
    """Scales of channels, and zero points that go into the weight, multiply sums of bytes."""
    w = (W.astype("int32") + 128).astype("uint8")

    def before(emit, x):
        zeros = relax.const(np.full(6, 128, "uint8"))
        x = emit(op.dequantize(x, relax.const(np.float32(0.5)), relax.const(np.uint8(9)), axis=1))
        w_ = emit(op.dequantize(relax.const(w), relax.const(SCALES), zeros, axis=0))
        return op.nn.conv2d(x, w_, **PADDED)

    def expected(emit, x):
        x = emit(op.nn.pad(x, WIDTHS, "constant", 9.0))
        total = emit(op.subtract(bytes_of(emit, x), relax.const(9 * SUMS)))
        both = relax.const(np.float32(0.5) * SCALES.reshape(6, 1, 1))
        return op.multiply(emit(op.astype(total, "float32")), both)

    found, codes = rewritten(module(before, tensor(*IMAGE)))
    found = relax.transform.DeadCodeElimination()(found)
    assert_structural_equal(found, module(expected, tensor(*IMAGE)))
    assert codes == ["bytes"]


def test_few_terms_are_exact_in_float32():
    """Depthwise convolutions, and groups of three channels."""
    w = W[:, :1]

    def expected(emit, x):
        x = emit(op.subtract(emit(op.astype(x, "float32")), relax.const(np.float32(7))))
        w_ = relax.const(w.astype("float32"))
        total = op.nn.conv2d(x, w_, **PADDED, groups=6, out_dtype="float32")
        return op.astype(emit(total), "int32")

    image = tensor(N, 6, 9, 7)
    becomes(widened(w, 7, **PADDED, groups=6), expected, image, code="depthwise")
    groups = widened(W[:, :3], groups=2)
    assert rewritten(module(groups, tensor(N, 6, 9, 7)))[1] == ["narrow_groups"]


def untouched(body, *types, code=None):
    mod = module(body, *types)
    after, codes = rewritten(mod)
    assert after.same_as(mod)
    assert codes == ([code] if code else [])


def test_many_terms_of_groups_stay_in_int32():
    """Sums of 9 * 63 products of 255 * 128 are not exact in float32."""
    w = np.full((2, 63, 3, 3), -128, "int8")
    untouched(widened(w, groups=2), tensor(N, 126, 9, 7), code="narrow_groups")


def test_differences_of_bytes_are_int16():
    """Wide weights, and padding of zero points that are no bytes."""
    w = np.where(RNG.random(W.shape) < 0.5, -128, 255)

    def expected(weight, zero):
        def body(emit, x):
            x = emit(op.astype(x, "int16"))
            x = emit(op.subtract(x, relax.const(np.int16(zero))))
            weight_ = relax.const(weight.astype("int16"))
            return op.nn.conv2d(x, weight_, **PADDED, out_dtype="int32")

        return body

    image = tensor(*IMAGE)
    becomes(widened(w, 3, **PADDED), expected(w, 3), image, code="wide_weights")
    becomes(widened(W, 300, **PADDED), expected(W, 300), image, code="wide_padding")
    any_number = tensor(dtype="int32")  # which may be no int16
    untouched(widened(W, **PADDED), image, any_number, code="unknown_padding")
    far = widened(np.tile(W, (1, 30, 1, 1)), 1 << 20, **PADDED)
    untouched(far, tensor(N, 240, 9, 7), code="wide_padding")


def test_a_zero_point_of_the_run_time_pads():
    """``pad(x ^ z, 0) ^ z``: what pads is a constant, and a dynamic zero point is none."""

    def given(emit, x, zero):
        return widened(W, **PADDED)(emit, x, emit(op.astype(zero, "int32")))

    def expected(emit, x, zero):
        wide = emit(op.astype(zero, "int32"))
        byte = emit(op.astype(wide, "uint8"))
        x = emit(op.nn.pad(emit(op.bitwise_xor(x, byte)), WIDTHS, "constant", 0.0))
        total = bytes_of(emit, emit(op.bitwise_xor(x, byte)))
        return op.subtract(total, emit(op.multiply(wide, relax.const(SUMS))))

    becomes(given, expected, tensor(*IMAGE), tensor(dtype="uint8"))


def test_weights_of_a_channel_that_lie_elsewhere_are_moved():
    """uint8 weights whose zero point is not 128: bytes, and a number for each channel."""
    w = W.astype("int32") + np.array([0, 15, -9, 128, 0, 1]).reshape(6, 1, 1, 1)
    offsets = np.maximum(w.reshape(6, -1).max(1) - 127, 0) + np.minimum(
        w.reshape(6, -1).min(1) + 128, 0
    )
    narrow = (w - offsets.reshape(6, 1, 1, 1)).astype("int8")

    def expected(emit, x):
        x = emit(op.nn.pad(x, WIDTHS, "constant", 3.0))
        total = op.nn.conv2d(x, relax.const(narrow), out_dtype="int32")
        channels = emit(op.sum(emit(op.astype(x, "float32")), [1], keepdims=True))
        ones = relax.const(np.ones((1, 1, 3, 3), "float32"))
        windows = emit(op.nn.conv2d(channels, ones, out_dtype="float32"))
        windows = emit(op.astype(windows, "int32"))
        both = emit(op.multiply(windows, relax.const(offsets.astype("int32").reshape(6, 1, 1))))
        sums = w.sum(axis=(1, 2, 3), dtype="int32").reshape(6, 1, 1)
        total = emit(op.add(emit(total), both))
        return op.subtract(total, relax.const(3 * sums))

    found, codes = rewritten(module(widened(w, 3, **PADDED), tensor(*IMAGE)))
    assert codes == ["bytes"]
    after = module(expected, tensor(*IMAGE))
    order = lambda mod: sorted(str(b.value.op) for b in mod["main"].body.blocks[0].bindings)  # noqa: E731
    assert order(found) == order(after)


@pytest.mark.slow
@pytest.mark.parametrize("zero", [128, 113, 0])
@pytest.mark.parametrize("target", ["cpu:x86-64-v3", "cpu"])
def test_dynamically_quantised_convolutions_are_exact(zero, target, tmp_path):
    """Padded, of uint8 weights: what ``quantize_dynamic`` makes of a convolution."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]>'
        "g (float[1, 16, 11, 9] x) => (int32[1, 24, 11, 9] y, uint8[1, 16, 11, 9] q, uint8 z) {"
        "q, s, z = DynamicQuantizeLinear(x)"
        "y = ConvInteger<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(q, w, z, u) }"
    )
    w = np.random.default_rng().integers(0, 256, (24, 16, 3, 3)).astype("uint8")
    for name, array in (("w", w), ("u", np.array(zero, "uint8"))):
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    x = np.random.default_rng().standard_normal((1, 16, 11, 9)).astype("float32")
    artifact = tvm_fusion.compile(model, target)
    assert not [
        d
        for d in artifact.manifest["decisions"]
        if d["code"] in ("wide_weights", "unknown_padding")
    ]
    found = tvm_fusion.load(artifact.export(tmp_path / "model"))(x=x)
    image = np.pad(found["q"].astype("int64") - int(found["z"]), ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(image, (3, 3), axis=(2, 3))
    expected = np.einsum("ncijkl,ockl->noij", windows, w.astype("int64") - zero)
    np.testing.assert_array_equal(found["y"], expected)


def test_what_is_no_convolution_of_bytes_stays():
    untouched(widened(W), tensor(*IMAGE, dtype="int16"))
    weight = tensor(6, 8, 3, 3, dtype="int32")
    untouched(
        lambda emit, x, w: op.nn.conv2d(emit(op.astype(x, "int32")), w), tensor(*IMAGE), weight
    )
    by_channel = tensor(8, 1, 1, dtype="int32")
    untouched(widened(W), tensor(*IMAGE), by_channel)
    last = {"data_layout": "NHWC", "kernel_layout": "OHWI"}
    moved = np.ascontiguousarray(W.transpose(0, 2, 3, 1))
    untouched(widened(moved, **last), tensor(N, 9, 7, 8))


def dequantised(shape, **weight):
    """A float32 convolution of a dequantised image with scales for its channels, or a weight."""

    def body(emit, x, *given):
        count = 8 if "several" in weight else 1
        scale, zero = np.full(count, 0.5, "float32"), np.full(count, 3, "uint8")
        x = emit(op.dequantize(x, relax.const(scale), relax.const(zero), axis=1))
        w = given[0] if given else relax.const(W[:, : shape[1]])
        scales = np.full(int(w.ty.shape[weight.get("axis", 0)]), 0.1, "float32")
        zeros = relax.const(np.zeros(len(scales), "int8"))
        w = emit(op.dequantize(w, relax.const(scales), zeros, axis=weight.get("axis", 0)))
        return op.nn.conv2d(x, w, groups=weight.get("groups", 1))

    return body


def test_dequantised_convolutions_that_stay():
    image, weight = tensor(*IMAGE), tensor(6, 8, 3, 3, dtype="int8")
    untouched(dequantised((6, 8)), image, weight, code="not_constant")
    untouched(dequantised((6, 8), several=True), image, code="several_scales")
    untouched(dequantised((6, 8), axis=1), image, code="several_scales")
    untouched(dequantised((6, 1), groups=6), tensor(N, 6, 9, 7), code="depthwise")


def test_weights_of_float_convolutions_are_dequantised_once():
    """CPUs pack constant weights; a dequantize of a weight would be a kernel of each call."""

    def expected(emit, x):
        x = emit(op.dequantize(x, relax.const(np.full(1, 0.5, "float32")), ZERO, axis=1))
        weight = relax.const(W[:, :1] * np.float32(0.1))
        return op.nn.conv2d(x, weight, groups=6, out_dtype="float32")

    with CPU.tvm_target():
        becomes(dequantised((6, 1), groups=6), expected, tensor(N, 6, 9, 7), code="depthwise")


def test_gpus_convolve_in_float32():
    with CUDA.tvm_target():
        many = widened(np.tile(W, (1, 30, 1, 1)), 3, **PADDED)
        untouched(many, tensor(N, 240, 9, 7), code="no_byte_kernels")
        after, codes = rewritten(module(widened(W, 3, **PADDED), tensor(*IMAGE)))
        untouched(dequantised((6, 8)), tensor(*IMAGE), code="no_byte_kernels")
    assert codes == ["no_byte_kernels"]
    assert "float32" in after.script()


@settings(max_examples=8)
@given(
    st.sampled_from(["int8", "uint8"]),
    st.sampled_from([-128, -3, 0, 5, 255]),
    st.tuples(*[st.integers(0, 2)] * 4),
    st.tuples(st.integers(1, 2), st.integers(1, 2)),
    st.integers(0, 200),
)
@pytest.mark.slow
def test_compiled_convolutions_are_exact(dtype, zero, padding, strides, weight_zero):
    """Through the whole pipeline against int64, wide weights and flipped images included."""
    limits, rng = np.iinfo(dtype), np.random.default_rng()
    zero = min(max(zero, limits.min), limits.max)
    x = rng.integers(limits.min, limits.max + 1, (2, 8, 9, 7)).astype(dtype)
    w = rng.integers(0, 256, (20, 8, 3, 3)) - weight_zero
    body = widened(w, zero, padding=padding, strides=strides)
    with CPU.tvm_target() as target:
        mod = transform.ByteProducts()(module(body, tensor(*x.shape, dtype=dtype)))
        built = tvm.compile(relax_pipeline(target=target)(mod), target, tir_pipeline="tvm_fusion")
    machine = relax.VirtualMachine(built, tvm.cpu())
    found = machine["main"](tvm.runtime.tensor(x)).numpy()
    top, left, bottom, right = padding
    image = np.pad(x.astype("int64") - zero, ((0, 0), (0, 0), (top, bottom), (left, right)))
    windows = np.lib.stride_tricks.sliding_window_view(image, (3, 3), axis=(2, 3))
    windows = windows[:, :, :: strides[0], :: strides[1]]
    np.testing.assert_array_equal(found, np.einsum("ncyxrs,kcrs->nkyx", windows, w))
