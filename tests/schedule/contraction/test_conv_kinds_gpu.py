"""Convolutions of other types and ranks on tensor cores: bytes, tfloat32, 1D, 3D, any batch."""

from dataclasses import replace

import numpy as np
import pytest
from emulator.launch import launch
from group_kernels import CUDA, SIZE, tensor
from rounding import assert_sums_close
from tvm import relax, tirx

from tests.schedule.contraction.conv_graphs import laid_out
from tvm_fusion.schedule.contraction.gpu.template import GpuContraction
from tvm_fusion.schedule.contraction.mma.default import best_tile
from tvm_fusion.schedule.contraction.tile.read_problem import gemm_problem
from tvm_fusion.schedule.contraction.wgmma.config import WgmmaWindowConfig
from tvm_fusion.schedule.contraction.wgmma.space import best_wgmma_tile
from tvm_fusion.schedule.stage.install import gather

pytestmark = pytest.mark.slow_beyond(4)

op = relax.op
TEMPLATE = GpuContraction()
CONVOLUTIONS = {3: op.nn.conv1d, 4: op.nn.conv2d, 5: op.nn.conv3d}
n, h, w = (tirx.Var(name, "int64") for name in "nhw")
SIZES = {n: SIZE, h: 19, w: 11}
ROUNDING = replace(CUDA.device, rounds_to_tf32=True)
# Image, weight, stride, type, type of sums, and whether windows of wgmma compute it.
CASES = {
    "int8 windows": ((1, 80, 9, 7), (48, 80, 3, 3), 1, "int8", "int32", True),
    "int8 tiles": ((1, 16, 5, 5), (24, 16, 3, 3), 2, "int8", "int32", False),
    "sequence": ((2, 72, 83), (64, 72, 3), 1, "float16", "float32", True),
    "strided sequence": ((1, 24, 71), (16, 24, 4), 2, "float16", "float32", False),
    "volume": ((1, 16, 5, 4, 3), (24, 16, 3, 2, 3), 1, "float16", "float32", True),
    "tfloat32": ((1, 40, 6, 7), (48, 40, 3, 3), 1, "float32", "float32", True),
    "any batch": ((n, 24, 4, 5), (40, 24, 3, 3), 1, "float16", "float32", False),
    "windows of any batch": ((n, 24, 4, 5), (40, 24, 3, 3), 1, "float16", "float32", True),
    "any rows": ((2, 24, h, 8), (40, 24, 3, 3), 1, "float16", "float32", True),
    "any image": ((n, 24, h, w), (40, 24, 3, 3), 1, "float16", "float32", True),
    "any image, strided": ((1, 72, h, w), (24, 72, 3, 2), 2, "float16", "float32", True),
    "tiles of any image": ((1, 24, h, w), (40, 24, 3, 3), 2, "float16", "float32", False),
}


def convolution(x, w, stride):
    """Of any rank, padded by one pixel."""
    x = np.pad(x, [(0, 0), (0, 0), *[(1, 1)] * (x.ndim - 2)])
    sizes = [(e - r) // stride + 1 for e, r in zip(x.shape[2:], w.shape[2:], strict=True)]
    y = np.zeros((len(x), len(w), *sizes))
    for tap in np.ndindex(w.shape[2:]):
        steps = (
            slice(t, t + (e - 1) * stride + 1, stride) for t, e in zip(tap, sizes, strict=True)
        )
        part = x[(slice(None), slice(None), *steps)]
        y += np.einsum("nc...,kc->nk...", part, w[(slice(None), slice(None), *tap)])
    return y


@pytest.mark.parametrize("case", CASES)
def test_computes_the_convolution(case):
    shape, weight, stride, dtype, wide, has_windows = CASES[case]
    device = ROUNDING if case == "tfloat32" else CUDA.device
    rng = np.random.default_rng()
    sizes = [SIZES.get(e, e) for e in shape]
    if dtype == "int8":
        x, w = (rng.integers(-128, 128, s).astype(dtype) for s in (sizes, weight))
    else:
        x, w = (rng.standard_normal(s).astype(dtype) for s in (sizes, weight))
    exact = convolution(x.astype("float64"), w.astype("float64"), stride)

    def body(emit, x):
        convolve = CONVOLUTIONS[len(shape)]
        y = emit(convolve(x, relax.const(w, dtype), stride, padding=1, out_dtype=wide))
        return op.maximum(y, relax.const(np.array(0, wide)))

    members = laid_out([tensor("x", *shape, dtype=dtype)], body)
    claim = TEMPLATE.claim(members, device)
    config = claim.details.config
    assert config.tile is not None
    best = best_wgmma_tile if has_windows else best_tile
    tile = best(gemm_problem(config.contraction, device), device)
    assert isinstance(tile, WgmmaWindowConfig) == has_windows
    details = replace(claim.details, config=replace(config, gemm=tile))
    claim = replace(claim, details=details)
    made = TEMPLATE.emit(claim, CUDA.tvm_target())
    every = enumerate(members.inputs)
    passed = [last(x) if v.constant is None else packed(made, k, v) for k, v in every]
    result = np.full(last(exact).shape, 7, wide)
    launch(made.kernels[0].func, [*passed, result], CUDA.tvm_target())
    expected = np.maximum(last(exact), 0)
    if wide == "int32":
        assert (result == expected).all()
        return
    size = last(convolution(np.abs(x.astype("float64")), np.abs(w.astype("float64")), stride))
    terms = int(np.prod(weight[1:]))
    if device is ROUNDING:  # operands are rounded to 10 bits
        assert (np.abs(result - expected) <= size * 2.0**-9).all()
    else:
        assert_sums_close(result, expected, size, terms + 2)


def last(y):
    """Channels last in memory."""
    return np.ascontiguousarray(np.moveaxis(y, 1, -1))


def packed(made, position, value):
    """The weight, in the order of the sum where kernels want it so."""
    if position in made.packing:
        return gather(made.packing[position], value.constant.value).numpy()
    return value.constant.value.numpy()
