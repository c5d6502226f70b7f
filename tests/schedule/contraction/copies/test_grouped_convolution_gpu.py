"""Grouped convolutions of channels-last images on tensor cores: batches of implicit GEMMs."""

from dataclasses import replace

import numpy as np
import pytest
from group_kernels import CUDA, tensor
from rounding import assert_sums_close
from tvm import relax

from tests.schedule.contraction.conv_graphs import NHWC, laid_out, launched, with_residual
from tvm_fusion.schedule.contraction.copies.grouped_convolution import grouped_gemms
from tvm_fusion.schedule.contraction.copies.implicit_gemm import with_stored_columns
from tvm_fusion.schedule.contraction.gpu.emit import GpuContractionConfig
from tvm_fusion.schedule.contraction.gpu.template import GpuContraction
from tvm_fusion.schedule.contraction.problem.sum_of_products import analyse
from tvm_fusion.schedule.contraction.problem.template import constants_of
from tvm_fusion.schedule.contraction.tile.read_problem import gemm_problem
from tvm_fusion.schedule.contraction.wgmma.config import WgmmaWindowConfig
from tvm_fusion.schedule.contraction.wgmma.space import best_wgmma_tile
from tvm_fusion.schedule.index.inline import inlined

op = relax.op
TEMPLATE = GpuContraction()
# Image, weight, options, and the shape of the packed weight.
CASES = {
    "a group a matrix": ((1, 64, 9, 7), (64, 16, 3, 3), {"groups": 4}, (4, 16, 3, 3, 16)),
    "narrow, joined": ((1, 32, 9, 7), (32, 4, 3, 3), {"groups": 8}, (32, 3, 3, 32)),
    "three channels": ((2, 24, 9, 9), (16, 3, 3, 3), {"groups": 8, "stride": 2}, (16, 3, 3, 24)),
    "pointwise": (
        (2, 48, 5, 9), (96, 24, 1, 1), {"groups": 2, "padding": (0, 0)}, (2, 48, 24),
    ),
}  # fmt: skip
WINDOWS = {
    "two groups": ((2, 144, 5, 6), (80, 72, 3, 3), {"groups": 2}),
    "strided": ((1, 64, 17, 15), (160, 16, 3, 3), {"groups": 4, "stride": 2}),
}


def build(shape, weight, options, is_nchw=False, dtype="float16"):
    """The group of a convolution plus a residual, its inputs, exact sums, sums of magnitudes."""
    params, body, arrays, exact, size = with_residual(shape, weight, options, dtype)
    order = (0, 1, 2, 3) if is_nchw else NHWC
    arrays = {"x": arrays["x"].transpose(NHWC), "r": arrays["r"].transpose(order)}
    members = laid_out(params, body, only=["x"] if is_nchw else None)
    return members, arrays, exact.transpose(order), size.transpose(order)


def check(made, claim):
    members, arrays, exact, size = made
    result = launched(TEMPLATE.emit(claim, CUDA.tvm_target()), members, arrays)
    assert_sums_close(result, exact, size, claim.details.config.tile.problem.k + 2)


@pytest.mark.parametrize("case", CASES)
def test_computes_the_convolution(case):
    *given, packed = CASES[case]
    made = build(*given)
    claim = TEMPLATE.claim(made[0], CUDA.device)
    assert tuple(map(int, claim.details.copies.packed.ty.shape)) == packed
    check(made, claim)


@pytest.mark.slow_beyond(3)
@pytest.mark.parametrize("is_nchw", [False, True])
@pytest.mark.parametrize("case", WINDOWS)
def test_windows_of_groups(case, is_nchw):
    """With TMA and wgmma groups are a dimension of the image and of the weight."""
    made = build(*WINDOWS[case], is_nchw)
    claim = TEMPLATE.claim(made[0], CUDA.device)
    first = views(made[0])[0]
    contraction = with_stored_columns(first.contraction, {first.packed})
    tile = best_wgmma_tile(gemm_problem(contraction, CUDA.device), CUDA.device)
    assert isinstance(tile, WgmmaWindowConfig)
    assert len(tile.problem.batch) == 1
    assert tile.is_of_rows is not is_nchw
    program = first.program(made[0].program)
    config = GpuContractionConfig(program, contraction, CUDA.device, tile)
    details = replace(claim.details, config=config, copies=first)
    check(made, replace(claim, details=details))


def test_other_groups_stay_finite():
    """A group that is a matrix of its own does not see the infinite pixels of another one."""
    shape, weight, options = WINDOWS["two groups"]
    made = build(shape, weight, options)
    claim = TEMPLATE.claim(made[0], CUDA.device)
    assert claim.details.config.tile.problem.batch
    made[1]["x"] = made[1]["x"].copy()
    made[1]["x"][..., 72:] = np.inf
    result = launched(TEMPLATE.emit(claim, CUDA.tvm_target()), made[0], made[1])
    assert np.isfinite(result[..., :40]).all()
    assert not np.isfinite(result[..., 40:]).any()


def test_float32_keeps_its_precision():
    made = build((1, 32, 9, 7), (32, 16, 3, 3), {"groups": 2}, dtype="float32")
    claim = TEMPLATE.claim(made[0], CUDA.device)
    assert claim.details.config.tile.problem.products == 3
    check(made, claim)


@pytest.mark.parametrize("groups", [1, 16])
def test_dense_and_depthwise_convolutions_have_none(groups):
    params, body, *_ = with_residual((1, 16, 5, 5), (16, 16 // groups, 3, 3), {"groups": groups})
    assert not views(laid_out(params, body))


def test_weights_that_are_inputs_have_none():
    params = [tensor("x", 1, 16, 5, 5, dtype="float16"), tensor("w", 16, 8, 3, 3, dtype="float16")]

    def body(emit, x, w):
        return op.nn.conv2d(x, w, padding=(1, 1), groups=2, out_dtype="float32")

    assert not views(laid_out(params, body, only=["x"]))


def views(members):
    contraction = analyse(members.program, inlined(members.program))
    return list(grouped_gemms(contraction, constants_of(members)))
