"""Convolutions of channels-last images on tensor cores: implicit GEMMs."""

from dataclasses import replace

import numpy as np
import pytest
from group_kernels import CUDA, cuda_kernel, group, tensor
from nvcc import machine_code, needs_nvcc
from tvm import relax

from tests.schedule.contraction.conv_graphs import NHWC, convolution, laid_out, launched
from tests.schedule.contraction.gemm_graphs import changed
from tvm_fusion.core.contract.template import Claim
from tvm_fusion.schedule.contraction.copies.implicit_gemm import ImplicitGemm
from tvm_fusion.schedule.contraction.gpu.template import GpuContraction
from tvm_fusion.schedule.contraction.tile.operand.tile import OperandTile
from tvm_fusion.schedule.contraction.tile.results.vectors import (
    ResultVectors,
    result_vectors,
)

op = relax.op
TEMPLATE = GpuContraction()

CASES = {
    "3x3": ((1, 16, 9, 7), (24, 16, 3, 3), {}),
    "strided": ((1, 24, 11, 8), (16, 24, 3, 3), {"stride": 2}),
    "dilated": ((1, 16, 9, 9), (16, 16, 3, 3), {"padding": (2, 2), "dilation": 2}),
    "without padding": ((2, 8, 9, 7), (40, 8, 2, 4), {"stride": 2, "padding": (0, 0)}),
    "5x1": ((1, 16, 9, 9), (16, 16, 5, 1), {"padding": (2, 0)}),
    "4 channels": ((1, 4, 13, 9), (24, 4, 3, 3), {}),
    "more taps than 31": ((1, 8, 7, 9), (16, 8, 5, 7), {"padding": (2, 3)}),
}
POINTWISE = (1, 24, 11, 8), (40, 24, 1, 1), {"stride": 2, "padding": (0, 0)}


def build(case, dtype="float16", bias=True):
    shape, weight, options = CASES.get(case, POINTWISE)
    options = {"stride": 1, "padding": (1, 1), "dilation": 1, "groups": 1, **options}
    rng = np.random.default_rng(3)
    x = rng.standard_normal(shape).astype(dtype)
    w = (rng.standard_normal(weight) / np.sqrt(np.prod(weight[1:]))).astype(dtype)
    b = rng.standard_normal((1, weight[0], 1, 1)).astype(dtype)
    expected = convolution(x.astype("float64"), w.astype("float64"), **options)
    r = rng.standard_normal(expected.shape).astype(dtype)

    def body(emit, x, r):
        y = emit(
            op.nn.conv2d(
                x,
                relax.const(w),
                options["stride"],
                options["padding"],
                options["dilation"],
                options["groups"],
                out_dtype="float32",
            )
        )
        if bias:
            y = emit(op.add(y, emit(op.astype(relax.const(b), "float32"))))
        y = emit(op.nn.relu(emit(op.add(y, emit(op.astype(r, "float32"))))))
        return emit(op.astype(y, dtype))

    members = laid_out([tensor("x", *shape, dtype=dtype), tensor("r", *r.shape, dtype=dtype)], body)
    expected = np.maximum(expected + (b if bias else 0) + r.astype("float64"), 0)
    arrays = {"x": x.transpose(NHWC), "r": r.transpose(NHWC)}
    return members, arrays, expected.transpose(NHWC)


def claimed(members, device=CUDA.device):
    claim = TEMPLATE.claim(members, device)
    assert isinstance(claim, Claim), claim
    assert isinstance(claim.details.copies, ImplicitGemm)
    return claim


def run(claim, arrays):
    """Run in the emulator; images are found by their names."""
    return launched(TEMPLATE.emit(claim, CUDA.tvm_target()), claim.group, arrays)


@pytest.mark.parametrize("case", CASES)
def test_a_convolution_is_copied_and_right(case):
    members, arrays, expected = build(case)
    claim = claimed(members)
    tile = claim.details.config.tile
    assert OperandTile(tile, True).is_copied
    assert OperandTile(tile, False).is_copied
    np.testing.assert_allclose(run(claim, arrays), expected, atol=4e-3)


@pytest.mark.parametrize(
    "shape",
    [
        {"split_k": 2, "stages": 3},
        {"block_m": 128, "block_n": 64, "warps_m": 2, "warps_n": 2, "warps_k": 1},
        {"block_k": 128, "stages": 3},
    ],
)
def test_other_configurations_are_right(shape):
    members, arrays, expected = build("strided")
    claim = claimed(members)
    config = claim.details.config
    small = {"block_m": 32, "block_n": 32, "warps_m": 1, "warps_n": 1, "warps_k": 4, **shape}
    config = replace(config, gemm=changed(config.tile, **small))
    claim = replace(claim, details=replace(claim.details, config=config))
    np.testing.assert_allclose(run(claim, arrays), expected, atol=4e-3)


def test_weights_of_pointwise_convolutions_are_copied():
    """As they are: ``[K, C, 1, 1]`` is contiguous along the terms."""
    members, arrays, expected = build("pointwise")
    claim = TEMPLATE.claim(members, CUDA.device)
    tile = claim.details.config.tile
    assert not isinstance(claim.details.copies, ImplicitGemm)
    assert OperandTile(tile, True).is_copied
    assert OperandTile(tile, False).is_copied
    np.testing.assert_allclose(run(claim, arrays), expected, atol=4e-3)


def test_float32_keeps_its_precision():
    members, arrays, expected = build("3x3", "float32")
    claim = claimed(members)
    assert claim.details.config.tile.problem.products == 3
    np.testing.assert_allclose(run(claim, arrays), expected, atol=1e-5)


def test_bfloat16():
    members, arrays, expected = build("3x3", "bfloat16", bias=False)
    result = run(claimed(members), arrays).astype("float64")
    np.testing.assert_allclose(result, expected.astype("float64"), atol=4e-2)


def test_weights_that_are_inputs_are_packed_by_a_kernel_of_their_own():
    """Where that takes less than loads of single elements."""
    rng = np.random.default_rng()
    x = rng.standard_normal((1, 16, 9, 7)).astype("float16")
    w = (rng.standard_normal((24, 16, 3, 3)) / 12).astype("float16")

    def body(emit, x, w):
        y = emit(op.nn.conv2d(x, w, padding=(1, 1), out_dtype="float32"))
        return op.astype(emit(op.nn.relu(y)), "float16")

    params = [tensor(name, *a.shape, dtype="float16") for name, a in (("x", x), ("w", w))]
    claim = claimed(laid_out(params, body, only=["x"]))
    emission = TEMPLATE.emit(claim, CUDA.tvm_target())
    assert claim.launches == 2
    assert list(emission.packing) == [1]
    assert OperandTile(claim.details.config.tile, False).is_copied
    sums = convolution(
        *(a.astype("float64") for a in (x, w)), stride=1, padding=(1, 1), dilation=1, groups=1
    )
    found = launched(emission, claim.group, {"x": x.transpose(NHWC), "w": w})
    np.testing.assert_allclose(found, np.maximum(sums, 0), atol=4e-3)


def test_phases_of_a_transposed_convolution():
    """Channels of a convolution, stored as blocks of pixels: vectors lie along those of a phase."""
    rng = np.random.default_rng()
    x = rng.standard_normal((1, 24, 9, 7)).astype("float16")
    w = (rng.standard_normal((4 * 16, 24, 2, 2)) / 10).astype("float16")

    def body(emit, x):
        options = {"padding": (1, 1, 0, 0), "out_dtype": "float32"}
        y = emit(op.astype(emit(op.nn.conv2d(x, relax.const(w), **options)), "float16"))
        blocks = emit(op.reshape(y, (1, 2, 2, 16, 9, 7)))
        pixels = emit(op.permute_dims(blocks, [0, 3, 4, 1, 5, 2]))
        return op.reshape(pixels, (1, 16, 18, 14))

    claim = claimed(laid_out([tensor("x", *x.shape, dtype="float16")], body))
    assert result_vectors(claim.details.config.tile.problem) == ResultVectors(8, False)
    wide = np.pad(x.astype("float64"), [(0, 0), (0, 0), (1, 0), (1, 0)])
    sums = convolution(wide, w.astype("float64"), stride=1, padding=(0, 0), dilation=1, groups=1)
    blocks = sums.reshape(1, 2, 2, 16, 9, 7).transpose(0, 3, 4, 1, 5, 2)
    expected = blocks.reshape(1, 16, 18, 14).transpose(NHWC)
    np.testing.assert_allclose(run(claim, {"x": x.transpose(NHWC)}), expected, atol=4e-3)


def test_images_of_the_graphs_layout_are_no_implicit_gemm():
    """But where chunks are of planes: test_planes_gpu."""
    shape, weight = (1, 12, 9, 7), (24, 12, 3, 3)
    w = relax.const(np.ones(weight, "float16"))

    def body(emit, x):
        return op.nn.conv2d(x, w, padding=(1, 1), out_dtype="float32")

    claim = TEMPLATE.claim(group([tensor("x", *shape, dtype="float16")], body, CUDA), CUDA.device)
    assert not isinstance(claim.details.copies, ImplicitGemm)


@needs_nvcc
@pytest.mark.cuda_toolchain
@pytest.mark.parametrize("size", [28, 64])
def test_no_branches_around_copies(size):
    """Those of a tile of K stand between ldmatrix and the first products, under one condition.

    Where there is no Tensor Memory Accelerator: with one, wgmma takes windows of the image.
    """
    weight = relax.const(np.ones((128, 128, 3, 3), "float16"))

    def body(emit, x):
        return op.nn.conv2d(x, weight, padding=(1, 1), out_dtype="float16")

    members = laid_out([tensor("x", 2, 128, size, size, dtype="float16")], body)
    claim = claimed(members, replace(CUDA.device, tma=False))
    (made,) = TEMPLATE.emit(claim, CUDA.tvm_target()).kernels
    code = machine_code({"main": made.func})["main"]
    assert code.stack_bytes == code.spilled_bytes == 0
    assert abs(claim.registers - code.registers) <= claim.registers / 4
    before = code.ptx[: code.ptx.index("mma.sync")]
    copies = before[before.rindex("ldmatrix") :]
    assert "cp.async" in copies
    assert copies.count("bra") == 1


@pytest.mark.cuda_toolchain
def test_images_are_copied_in_vectors():
    claim = claimed(build("3x3")[0])
    (made,) = TEMPLATE.emit(claim, CUDA.tvm_target()).kernels
    text = cuda_kernel(made.func)
    assert "cp_async" in text
    assert "ld.global" not in text
