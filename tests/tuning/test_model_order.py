"""Candidates are in the order of their template's model."""

import pytest
from group_kernels import CPU, CUDA, group, tensor
from tvm.relax import op

from tvm_fusion.core.contract.template import Claim
from tvm_fusion.schedule.attention.template import Attention
from tvm_fusion.schedule.contraction.cpu.templates.gemm import CpuContraction
from tvm_fusion.schedule.contraction.gpu.template import GpuContraction
from tvm_fusion.tuning.candidates import TILE, VARIANTS, choose

COUNT = 12


def halves(**shapes):
    return [tensor(name, *shape, dtype="float16") for name, shape in shapes.items()]


def attention(emit, q, k, v):
    scores = emit(op.matmul(q, emit(op.permute_dims(k, [0, 2, 1]))))
    return op.matmul(emit(op.nn.softmax(scores)), v)


def matmul(_, a, b):
    return op.matmul(a, b)


def convolution(_, x, w):
    return op.nn.conv2d(x, w, padding=1, data_layout="NHWC", kernel_layout="OHWI")


GEMM = halves(a=(300, 300), b=(300, 300)), matmul
ATTENTION = halves(q=(2, 130, 64), k=(2, 130, 64), v=(2, 130, 64)), attention
CONVOLUTION = halves(x=(1, 14, 14, 64), w=(64, 3, 3, 64)), convolution


def claimed(template, params, body, spec):
    claim = template.claim(group(params, body, spec), spec.device)
    assert isinstance(claim, Claim), claim
    return claim


def tile(config):
    return tuple(config.get(name) for name in TILE)


@pytest.mark.parametrize(
    ("template", "case"),
    [
        pytest.param(GpuContraction(), GEMM, id="GEMM"),
        pytest.param(Attention(True), ATTENTION, id="attention"),
        pytest.param(GpuContraction(), CONVOLUTION, id="convolution"),
    ],
)
def test_candidates_are_in_the_order_of_the_model(template, case):
    claim = claimed(template, *case, CUDA)
    configs = list(template.configs(claim, CUDA.device))
    found = list(template.estimates(claim, CUDA.device))
    clocks = {str(config): value for config, value in found}
    assert len(clocks) == len(found) > 50
    assert {str(config) for config in configs} >= set(clocks)
    default, least = configs[0], min(clocks.values())
    assert least > 0
    assert clocks[str(default)] < 1.5 * least

    chosen = choose(found, default, COUNT)
    assert chosen[0] == default
    variants = [config for config in chosen[1:] if tile(config) == tile(default)]
    tiles = [config for config in chosen if tile(config) != tile(default)]
    assert len(variants) <= VARIANTS
    assert len(set(map(tile, tiles))) == len(tiles)
    of_tile: dict[tuple, float] = {}
    for config, value in found:
        of_tile[tile(config)] = min(value, of_tile.get(tile(config), value))
    del of_tile[tile(default)]
    assert [clocks[str(config)] for config in tiles] == sorted(of_tile.values())[: len(tiles)]


@pytest.mark.parametrize(
    ("template", "case", "spec"),
    [
        pytest.param(CpuContraction(), GEMM, CPU, id="CPU"),
        pytest.param(Attention(False), ATTENTION, CPU, id="attention of a CPU"),
        pytest.param(
            GpuContraction(), (halves(a=(4, 512), b=(512, 512)), matmul), CUDA, id="few rows"
        ),
    ],
)
def test_kernels_without_a_model_have_no_estimates(template, case, spec):
    claim = claimed(template, *case, spec)
    assert next(template.configs(claim, spec.device), None) is not None
    assert not list(template.estimates(claim, spec.device))
