"""Design spaces of templates on GPUs: plain data, the claimed one first, each can be emitted."""

import numpy as np
import pytest
from expert_graphs import experts
from relax_modules import main_module
from tvm import relax

from tvm_fusion.core.contract.template import Refusal
from tvm_fusion.device import device_of, parse
from tvm_fusion.report.planned import plan_model

pytestmark = pytest.mark.slow_beyond(2)

SPEC = parse("cuda:sm_90a")
DRAWN = 2  # configurations of a space that are emitted


def tensor(name, *shape):
    return relax.Var(name, relax.TensorType(shape, "float16"))


def weight(*shape):
    rng = np.random.default_rng(1)
    return relax.const(rng.standard_normal(shape).astype("float16"))


def gemm(rows):
    def body(emit, x):
        return emit(relax.op.nn.relu(relax.op.matmul(x, weight(256, 384))))

    return main_module([tensor("x", rows, 256)], body)


def attention(queries, keys=200):
    params = [tensor("q", 4, queries, 64), tensor("k", 4, keys, 64), tensor("v", 4, keys, 64)]

    def body(emit, q, k, v):
        scores = emit(relax.op.matmul(q, relax.op.permute_dims(k, [0, 2, 1])))
        return emit(relax.op.matmul(relax.op.nn.softmax(scores), v))

    return main_module(params, body)


def softmax():
    return main_module([tensor("x", 77, 1024)], lambda emit, x: emit(relax.op.nn.softmax(x)))


def group_norm():
    def body(emit, x):
        return emit(relax.op.nn.group_norm(x, weight(32), weight(32), 2, 1, [2, 3]))

    return main_module([tensor("x", 1, 32, 96, 80)], body)


def convolution(groups=1):
    def body(emit, x):
        return emit(relax.op.nn.conv2d(x, weight(64, 64 // groups, 3, 3), padding=1, groups=groups))

    return main_module([tensor("x", 2, 64, 14, 14)], body)


CASES = {
    "gemm": (gemm(200), "contraction", {"mma.sync", "wgmma"}),
    "experts": (experts(), "contraction", {"mma.sync", "wgmma"}),
    "gemv": (gemm(1), "contraction", {"gemv"}),
    "attention": (attention(100), "attention", {"flash mma", "CUDA cores"}),
    "decoding": (attention(1, 2048), "attention", {"flash decoding"}),
    "convolution": (convolution(), "contraction", {"mma.sync"}),
    "depthwise": (convolution(64), "depthwise", set()),
    "rows": (softmax(), "rows", {"rows"}),
    "split rows": (group_norm(), "split_rows", set()),
}


def claims(mod):
    """Claims of a plan, of images channels last."""
    plan = plan_model(mod, SPEC.text)
    return [claim.laid_out or claim for one in plan.plans.values() for claim in one.claims]


@pytest.fixture(scope="module", params=CASES.values(), ids=CASES)
def case(request):
    mod, name, kernels = request.param
    (claim,) = (c for c in claims(mod) if c.template.name == name)
    device = device_of(SPEC.tvm_target())
    return claim, device, kernels, list(claim.template.configs(claim, device))


@pytest.mark.slow
@pytest.mark.slow_beyond(1)
def test_spaces_are_plain_data(case):
    claim, device, kernels, configs = case
    assert kernels <= {config.get("kernel") for config in configs}
    assert len({tuple(config) for config in configs}) == 1  # the same keys
    assert all(isinstance(v, int | str) for config in configs for v in config.values())
    assert len({tuple(config.values()) for config in configs}) == len(configs) > 1
    assert configs == list(claim.template.configs(claim, device))


@pytest.mark.slow
def test_the_claimed_configuration_comes_first(case):
    claim, device, _, configs = case
    again = claim.template.configure(claim, configs[0], device)
    assert (again.shared_bytes, again.registers) == (claim.shared_bytes, claim.registers)
    assert again.launches == claim.launches


@pytest.mark.slow
def test_drawn_configurations_are_emitted(case):
    claim, device, _, configs = case
    target = SPEC.tvm_target()
    default = claim.template.emit(claim, target)
    drawn = np.random.default_rng(7).permutation(len(configs))[:DRAWN]
    others = 0
    for config in (configs[i] for i in drawn):
        chosen = claim.template.configure(claim, config, device)
        assert not isinstance(chosen, Refusal), config
        try:
            emission = claim.template.emit(chosen, target)
        except ValueError:  # a row that does not fit with what the configuration keeps
            continue
        assert len(emission.kernels) == chosen.launches
        others += str(emission.kernels[0].func) != str(default.kernels[0].func)
    assert others


@pytest.mark.slow
@pytest.mark.slow_beyond(1)
def test_what_is_not_in_the_space_is_refused(case):
    claim, device, _, configs = case
    answer = claim.template.configure(claim, {**configs[0], "stages": 77}, device)
    assert isinstance(answer, Refusal)
    assert "has no configuration of " in answer.sentence
