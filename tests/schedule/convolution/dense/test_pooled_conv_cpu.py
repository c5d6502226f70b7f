"""Convolutions whose sums are pooled in the tile, against float64."""

import dataclasses

import numpy as np
import pytest
from group_kernels import CPU, group
from relax_modules import main_module
from tvm import relax, tirx

from tests.schedule.convolution.conv_cases import (
    Conv,
    block,
    claimed,
    convolve,
    from_blocks,
    run,
    to_blocks,
    unblock,
)
from tvm_fusion.core.contract.template import Refusal
from tvm_fusion.device import parse
from tvm_fusion.pipeline import relax_pipeline
from tvm_fusion.schedule.convolution.dense.config import ConvConfig
from tvm_fusion.schedule.convolution.template import CpuConvolution

op = relax.op
POOLS = {"max": op.nn.max_pool2d, "mean": op.nn.avg_pool2d}
CASES = {
    "whole windows": (Conv(16, 32, (8, 12)), "max", (2, 2)),
    "the last row and column are left": (Conv(20, 40, (9, 13), batch=2), "max", (2, 2)),
    "windows of three": (Conv(16, 16, (9, 7), (1, 1), padding=(0, 0, 0, 0)), "max", (3, 3)),
    "columns alone": (Conv(16, 16, (5, 8)), "mean", (1, 2)),
    "rows alone": (Conv(16, 16, (6, 7)), "mean", (2, 1)),
    "groups, a mean": (Conv(24, 48, (6, 10), groups=3), "mean", (2, 2)),
    "plain results": (Conv(16, 48, (8, 12), block_out=0), "max", (2, 2)),
}


def body(conv, kind, window):
    def write(emit, x):
        w, b = conv.weights()
        x = unblock(emit, x, conv.c)
        y = op.nn.conv2d(x, relax.const(w), conv.stride, conv.padding, conv.dilation, conv.groups)
        y = emit(op.nn.relu(emit(op.add(emit(y), relax.const(b)))))
        y = emit(op.multiply(emit(POOLS[kind](y, window, window)), relax.const(np.float32(3))))
        return block(emit, y, conv.block_out) if conv.block_out else y

    return write


def pooled(conv, kind, window):
    w, b = (a.astype("float64") for a in conv.weights())
    y = np.maximum(convolve(conv.image().astype("float64"), w, conv) + b, 0)
    n, k, rows, columns = y.shape
    rows, columns = rows // window[0], columns // window[1]
    y = y[:, :, : rows * window[0], : columns * window[1]]
    y = y.reshape(n, k, rows, window[0], columns, window[1])
    return 3 * getattr(y, kind)((3, 5))


def check(conv, kind, window, claim, spec=CPU):
    (y,) = run(claim, {"x": to_blocks(conv.image(), conv.block_in)}, spec)
    y = from_blocks(y) if conv.block_out else y
    np.testing.assert_allclose(y[:, : conv.k], pooled(conv, kind, window), atol=6e-5, rtol=0)
    np.testing.assert_array_equal(y[:, conv.k :], 0)


@pytest.mark.slow_beyond(4)
@pytest.mark.parametrize("case", CASES)
def test_pooled_sums_against_float64(case):
    conv, kind, window = CASES[case]
    claim = claimed(conv.params(), body(conv, kind, window))
    assert claim.launches == 1
    check(conv, kind, window, claim)


@pytest.mark.slow
def test_pooled_tiles_of_all_shapes():
    conv = Conv(16, 40, (8, 12))
    claim = claimed(conv.params(), body(conv, "max", (2, 2)))
    lanes = claim.details.config.lanes
    for height, width, vectors, band, chunk in (
        (2, 4, 3, 1, 1),
        (4, 12, 1, 2, 2),
        (2, 10, 1, 3, 1),
    ):
        config = ConvConfig(lanes, height, width, vectors, band, chunk)
        details = dataclasses.replace(claim.details, config=config)
        check(conv, "max", (2, 2), dataclasses.replace(claim, details=details))


def test_pooled_blocks_of_a_narrower_vector():
    conv = Conv(16, 24, (8, 12), block_in=8, block_out=8)
    spec = parse("cpu:haswell")
    claim = claimed(conv.params(), body(conv, "max", (2, 2)), spec)
    check(conv, "max", (2, 2), claim, spec)


def overlapping(emit, x):
    conv = Conv(16, 32, (8, 12))
    y = emit(op.nn.conv2d(unblock(emit, x, 16), relax.const(conv.weights()[0]), padding=1))
    return block(emit, emit(op.nn.max_pool2d(y, (3, 3), (2, 2))), 16)


def padded(emit, x):
    conv = Conv(16, 32, (8, 12))
    y = emit(op.nn.conv2d(unblock(emit, x, 16), relax.const(conv.weights()[0]), padding=1))
    return block(emit, emit(op.nn.max_pool2d(y, (2, 2), (2, 2), (1, 1, 1, 1))), 16)


def read_twice(emit, x):
    conv = Conv(16, 32, (8, 12))
    y = emit(op.nn.conv2d(unblock(emit, x, 16), relax.const(conv.weights()[0]), padding=1))
    return [block(emit, y, 16), block(emit, emit(op.nn.max_pool2d(y, (2, 2), (2, 2))), 16)]


@pytest.mark.parametrize("write", [overlapping, padded, read_twice])
def test_other_pooling_is_refused(write):
    members = group(Conv(16, 32, (8, 12)).params(), write)
    answer = CpuConvolution().claim(members, CPU.device)
    assert isinstance(answer, Refusal)


def test_pooling_joins_the_convolution_of_a_compiled_model():
    conv = Conv(16, 32, (8, 12), block_in=0, block_out=0)

    def write(emit, x):
        y = emit(op.nn.conv2d(x, relax.const(conv.weights()[0]), padding=1))
        y = emit(op.nn.max_pool2d(emit(op.nn.relu(y)), (2, 2), (2, 2)))
        return op.nn.conv2d(y, relax.const(Conv(32, 16, (4, 6)).weights()[0]), padding=1)

    mod = main_module(conv.params(), write)
    planned = relax_pipeline(target=CPU.tvm_target(), lower=False)(mod)
    assert sum(isinstance(f, tirx.PrimFunc) for f in planned.functions.values()) == 2
