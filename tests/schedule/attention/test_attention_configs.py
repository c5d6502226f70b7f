"""The design space of attention on a GPU: the default first, every configuration computes it."""

from dataclasses import replace

import numpy as np
import pytest
from attention_graphs import PLAIN, tensors
from emulator.launch import launch
from group_kernels import CUDA, array, arrays, close, extents, group

from tvm_fusion.schedule.attention.attention_configs import configs
from tvm_fusion.schedule.attention.config_gpu import GpuConfig
from tvm_fusion.schedule.attention.constants import read_group
from tvm_fusion.schedule.attention.flash_decode import FlashDecodeConfig
from tvm_fusion.schedule.attention.flash_mma_config import FlashMmaConfig
from tvm_fusion.schedule.attention.match import FLOATS
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
    assert plain(claim.details["config"]) == plain(found[0])
    assert {type(config) for config in found} == KINDS[name]
    assert len(set(map(plain, found))) == len(found) > 8


def run(members, emission, inputs):
    held = {}
    for kind, types in (
        ("output", [v.type for v in members.outputs]),
        ("workspace", emission.workspaces),
    ):
        for i, type_ in enumerate(types):
            held[kind, i] = np.full(extents(type_), np.nan, str(type_.dtype))
    held |= {("input", i): array(value, inputs) for i, value in enumerate(members.inputs)}
    for made in emission.kernels:
        given = [held[s.kind, s.index] for s in (*made.reads, *made.writes)]
        launch(made.func, given, CUDA.tvm_target())
    return [held["output", i] for i in range(len(members.outputs))]


@pytest.mark.parametrize("name", SPACES)
def test_every_configuration_computes_attention(name):
    params, tolerance = SPACES[name]
    members, found = space(name)
    kind = type(found[0])
    found = [config for config in found if type(config) is kind]
    template, inputs = Attention(True), arrays(params)
    claim = template.claim(members, CUDA.device)
    expected = PLAIN[1](*(x.astype("float64") for x in inputs.values()))
    for i in np.random.default_rng().choice(len(found), 3, replace=False):
        changed = replace(claim, details={"config": found[i]})
        emission = template.emit(changed, CUDA.tvm_target())
        close(run(members, emission, inputs), expected, tolerance)
