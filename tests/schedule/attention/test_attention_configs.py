"""The design space of attention on a GPU: the default first, every configuration computes it."""

from dataclasses import replace

import numpy as np
import pytest
from group_kernels import CUDA, arrays, close, cuda_kernel, group, run_all, tensor

from tests.schedule.attention.attention_graphs import PLAIN, op, tensors
from tvm_fusion.fusion.cost import CostModel
from tvm_fusion.schedule.attention.cuda_cores.config import GpuConfig
from tvm_fusion.schedule.attention.decode.config import FlashDecodeConfig
from tvm_fusion.schedule.attention.flash.config import FlashMmaConfig
from tvm_fusion.schedule.attention.problem.constants import read_group
from tvm_fusion.schedule.attention.problem.match import FLOATS
from tvm_fusion.schedule.attention.space import configs
from tvm_fusion.schedule.attention.template import Attention

SPACES = {
    "decode": (tensors(1, 2, 2, 700, 64, dtype="float16"), 2e-3),
    "decode_cuda_cores": (tensors(1, 2, 2, 300, 32), 2e-5),
    "cuda_cores": (tensors(1, 2, 21, 37, 24), 2e-5),
    "tensor_cores": (tensors(1, 2, 40, 70, 64, dtype="float16"), 2e-3),
}
KINDS = {
    "decode": {FlashDecodeConfig, FlashMmaConfig, GpuConfig},
    "decode_cuda_cores": {FlashDecodeConfig, GpuConfig},
    "cuda_cores": {GpuConfig},
    "tensor_cores": {FlashMmaConfig, GpuConfig},
}


def space(name):
    members = group(SPACES[name][0], PLAIN[0], CUDA)
    pattern = read_group(members, (*FLOATS, "bfloat16"))
    return members, list(configs(pattern, CUDA.device))


def plain(config):
    if isinstance(config, FlashDecodeConfig):
        return type(config), config.splits, config.groups, config.stages
    return type(config), repr(config)


@pytest.mark.parametrize("name", SPACES)
def test_what_the_template_claims_comes_first_and_nothing_twice(name):
    members, found = space(name)
    claim = Attention(True).claim(members, CUDA.device)
    assert plain(claim.details.config) == plain(found[0])
    assert {type(config) for config in found} == KINDS[name]
    assert len(set(map(plain, found))) == len(found) > 8


@pytest.mark.parametrize("name", SPACES)
@pytest.mark.slow
def test_every_configuration_computes_attention(name):
    params, tolerance = SPACES[name]
    members, found = space(name)
    kind = type(found[0])
    found = [config for config in found if type(config) is kind]
    template, inputs = Attention(True), arrays(params)
    claim = template.claim(members, CUDA.device)
    expected = PLAIN[1](*(x.astype("float64") for x in inputs.values()))
    for i in np.random.default_rng().choice(len(found), 3, replace=False):
        changed = replace(claim, details=replace(claim.details, config=found[i]))
        emission = template.emit(changed, CUDA.tvm_target())
        close(run_all(members, emission, inputs), expected, tolerance)


def test_products_on_cuda_cores_run_at_the_rate_of_float32():
    """Whatever tensor cores could do with some of the operands."""

    def body(emit, q, k, v):
        scores = emit(op.matmul(q, k, out_dtype="float32"))
        return op.matmul(emit(op.nn.softmax(scores)), v)

    params = [tensor("q", 8, 128, 64, dtype="float16"), tensor("k", 8, 64, 128, dtype="float16")]
    members = group([*params, tensor("v", 8, 128, 64)], body, CUDA)
    claim = Attention(True).claim(members, CUDA.device)
    assert isinstance(claim.details.config, GpuConfig)
    of_cores, cost = claim.flops / CUDA.device.peak_flops["float32"], CostModel(CUDA.device)
    assert 1e6 * of_cores < cost.estimate(claim) < 50e6 * of_cores + 10
    faster = replace(claim, matrix_dtype="")
    assert cost.estimate(faster) < cost.estimate(claim)


@pytest.mark.parametrize(("heads", "rows"), [(2, (16, 1)), (40, (8, 4)), (200, (16, 4))])
def test_rows_of_a_thread_leave_blocks_for_all_multiprocessors(heads, rows):
    members = group(tensors(1, heads, 128, 128, 64), PLAIN[0], CUDA)
    config = GpuConfig.of(read_group(members), CUDA.device)
    assert (config.rows, config.rows_of_thread) == rows


@pytest.mark.parametrize("size", [8, 24, 33, 64, 80, 128, 256])
def test_rows_in_shared_memory_begin_in_different_banks(size):
    members = group(tensors(1, 2, 128, 128, size), PLAIN[0], CUDA)
    config = GpuConfig.of(read_group(members), CUDA.device)
    for pitch in (config.q_pitch, config.tile_pitch, config.p_pitch):
        assert {row * pitch // 4 % 8 for row in range(8)} == set(range(8))
    assert config.q_pitch >= size


def test_keys_that_lie_along_the_other_axis_are_loaded_by_neighbours():
    """Threads of a warp load keys that lie side by side, not elements that lie far apart."""
    body = PLAIN[0]

    def turned(emit, q, k, v):
        return body(emit, q, emit(op.permute_dims(k, [0, 1, 3, 2])), v)

    q, _, v = tensors(1, 2, 45, 70, 24)
    params = [q, tensor("k", 1, 2, 24, 70), v]
    members, inputs = group(params, turned, CUDA), arrays(params)
    claim = Attention(True).claim(members, CUDA.device)
    emission = Attention(True).emit(claim, CUDA.tvm_target())
    wide = [x.astype("float64") for x in inputs.values()]
    wide[1] = wide[1].swapaxes(2, 3)
    close(run_all(members, emission, inputs), PLAIN[1](*wide))
    text = cuda_kernel(emission.kernels[0].func)
    (loaded,) = [line for line in text.splitlines() if "= k_ptr[" in line]
    assert loaded.endswith("+ ((int)threadIdx.x))];")
