"""Two GEMMs back to back in one kernel: right for odd sizes, taken where it pays, else refused."""

from dataclasses import replace

import numpy as np
import pytest
from emulator.memory import EmulationError
from group_kernels import CUDA, arrays, close, group, run, tensor
from layer_graphs import layers
from nvcc import machine_code, needs_nvcc
from relax_modules import main_module
from tvm import relax, tirx

from tvm_fusion import FusionConfig
from tvm_fusion.core.contract.template import Claim
from tvm_fusion.core.tir.loops import sequence
from tvm_fusion.device import parse
from tvm_fusion.report.planned import plan_model
from tvm_fusion.schedule.contraction.back_to_back.problem import back_to_back
from tvm_fusion.schedule.contraction.back_to_back.roles import Roles, back_to_back_gpu
from tvm_fusion.schedule.contraction.back_to_back.space import back_to_back_configs
from tvm_fusion.schedule.contraction.back_to_back.template import BackToBackGemm
from tvm_fusion.schedule.gpu.matrix import wgmma
from tvm_fusion.schedule.gpu.memory.pipeline import Barriers
from tvm_fusion.schedule.gpu.threads.warp import lane_of
from tvm_fusion.schedule.index.inline import inlined

pytestmark = pytest.mark.slow_beyond(4)

op = relax.op
TEMPLATE = BackToBackGemm()
FEW = replace(CUDA.device, sm_count=2)  # so that a consumer computes several tiles
MANY = 65536  # rows that pay


def logarithms():
    """Of sums of zeros they are infinite: beyond the last hidden column they must not be read."""
    given = [tensor("x", 70, 64, dtype="float16")]
    given += [tensor("w", 64, 136, dtype="float16"), tensor("v", 136, 64, dtype="float16")]

    def body(emit, x, w, v):
        total = emit(op.matmul(x, w, "float32"))
        hidden = emit(op.astype(emit(op.log(emit(op.multiply(total, total)))), "float16"))
        return op.matmul(hidden, v, "float32")

    return given, body, lambda x, w, v: [np.log((x @ w) ** 2) @ v]


def turned():
    """Layers across rows: the first product is computed with its operands in each other's place."""
    given = [tensor("x", 64, 200, dtype="float16")]
    given += [tensor("w", 72, 64, dtype="float16"), tensor("v", 72, 40, dtype="float16")]

    def body(emit, x, w, v):
        hidden = emit(op.nn.relu(emit(op.permute_dims(emit(op.matmul(w, x))))))
        return op.matmul(hidden, v)

    return given, body, lambda x, w, v: [np.maximum(w @ x, 0).T @ v]


def pointwise():
    """Convolutions of one pixel over images of channels last."""
    given = [tensor("x", 2, 9, 7, 40, dtype="float16")]
    given += [
        tensor("w", 72, 1, 1, 40, dtype="float16"),
        tensor("v", 64, 1, 1, 72, dtype="float16"),
    ]

    def conv(x, w):
        return op.nn.conv2d(x, w, data_layout="NHWC", kernel_layout="OHWI")

    def body(emit, x, w, v):
        return conv(emit(op.nn.relu(emit(conv(x, w)))), v)

    return given, body, lambda x, w, v: [np.maximum(x @ w[:, 0, 0].T, 0) @ v[:, 0, 0].T]


CASES = {
    "whole": (layers(256, 64, 64, 64), (4, 64)),
    "ragged": (layers(150, 72, 96, 40, turned=True, has_residual=False), (3, 96)),
    "residual": (layers(333, 64, 104, 64, has_residual=True), (2, 112)),
    "chunks": (layers(200, 104, 200, 96), (3, 64)),
    "chunks_turned": (layers(200, 104, 264, 72, turned=True), (2, 128)),
    "odd_hidden": (layers(130, 40, 67, 64, turned=(True, False)), (3, 80)),
    "odd_columns": (layers(129, 64, 72, 51, turned=True), (3, 80)),
    "gelu": (layers(129, 64, 128, 24, activation="gelu"), (2, 64)),
    "bfloat16": (layers(129, 64, 64, 64, dtype="bfloat16"), (3, 64)),
    "axes_of_rows": (layers((3, 5, 11), 64, 64, 64), (4, 64)),
    "turned": (turned(), (3, 80)),
    "pointwise": (pointwise(), (3, 80)),
    "logarithms": (logarithms(), (2, 64)),
}


def pair_of(case):
    members = group(*case[:2], CUDA)
    return members, back_to_back(members.program, inlined(members.program))


def kernel_of(case, consumers, chunk, **changes):
    members, pair = pair_of(case)
    found = back_to_back_configs(pair, FEW)
    config = next(c for c in found if (c.consumers, c.chunk) == (consumers, chunk))
    return members, back_to_back_gpu(members.program, replace(config, **changes))


def computes(case, members, func):
    inputs = arrays(case[0], 1)
    expected = case[2](*(x.astype("float64") for x in inputs.values()))
    is_short = str(case[0][0].ty.dtype) == "bfloat16"
    close(run(func, members, inputs), expected, 2e-2 if is_short else 3e-3)


@pytest.mark.parametrize("name", CASES)
def test_computes_both(name):
    case, sizes = CASES[name]
    computes(case, *kernel_of(case, *sizes))


@pytest.mark.parametrize("consumers", [2, 3, 4])
def test_more_rows_than_stages(consumers):
    case = layers(64 * 20, 64, 64, 64)
    computes(case, *kernel_of(case, consumers, 64))


def test_a_stage_for_each_consumer():
    case = layers(640, 64, 64, 64)
    computes(case, *kernel_of(case, 3, 64, stages=3))


def test_stages_that_consumers_share():
    """The emulator knows of copies that arrive in another order: a phase may be taken for one."""
    case = layers(640, 64, 64, 64)
    with pytest.raises(EmulationError, match="read before its copy was waited for"):
        computes(case, *kernel_of(case, 3, 64, stages=4))


def claimed(case, device=CUDA.device):
    return TEMPLATE.claim(group(*case[:2], CUDA), device)


def test_the_hidden_rows_are_no_traffic():
    claim = claimed(layers(MANY, 64, 64, 64))
    assert claim.launches == 1
    assert claim.bytes == 2 * (2 * MANY * 64 + 2 * 64 * 64 + 2 * 64)


@pytest.mark.parametrize("spec", ["cuda:sm_80", "rocm:gfx942"])
def test_devices_without_wgmma(spec):
    device = parse(spec).device
    assert claimed(layers(MANY, 64, 64, 64), device).code == "not_mine"


def planned(case, spec="cuda:sm_90a"):
    """The claims of a model of a case, and why edges were refused."""
    found = plan_model(main_module(*case[:2]), spec, FusionConfig())
    (plan,) = found.plans.values()
    return plan.claims, [d.sentence for d in plan.decisions if d.verdict == "refused"]


def test_the_planner_takes_layers_two_by_two():
    """Although the two in the middle, being wider, save the most."""
    claims, _ = planned(layers(MANY, 32, 64, 64, 64, 16))
    assert [c.template.name for c in claims] == ["back_to_back"] * 2


def test_a_pair_behind_one_that_is_refused():
    claims, _ = planned(layers(MANY, 27, 64, 64, 64))
    assert [c.template.name for c in claims] == ["contraction", "back_to_back"]


def test_the_planner_tells_why_there_are_two_kernels():
    claims, reasons = planned(layers(3136, 96, 384, 96, activation="gelu", has_residual=True))
    assert [c.template.name for c in claims] == ["contraction"] * 2
    assert any("and the limit is 85%: it has 49 tiles of 64 rows" in reason for reason in reasons)


@pytest.mark.parametrize(
    ("case", "consumers", "chunk"),
    [
        (layers(MANY, 64, 64, 64), 3, 64),
        (layers(MANY, 32, 128, 32), 3, 128),
        (layers(MANY, 256, 64, 256), 2, 64),  # more sums than three consumers have registers for
        (layers(4096, 128, 128, 128), 2, 128),  # of a tile a block
    ],
)
def test_the_default(case, consumers, chunk):
    config = claimed(case).details.config
    assert (config.consumers, config.chunk) == (consumers, chunk)


def test_the_design_space():
    claim = claimed(layers(MANY, 64, 96, 64))
    found = list(TEMPLATE.configs(claim, CUDA.device))
    assert len({tuple(one.items()) for one in found}) == len(found) > 1
    for plain in found:
        other = TEMPLATE.configure(claim, plain, CUDA.device)
        assert isinstance(other, Claim)
        assert next(TEMPLATE.configs(other, CUDA.device))["kernel"] == "back to back"
        assert other.details.config.chunk == plain["chunk"]
        assert other.shared_bytes <= CUDA.device.shared_memory_per_block
        assert plain["stages"] % plain["consumers"] == 0
    unknown = {**found[0], "chunk": 7}
    assert TEMPLATE.configure(claim, unknown, CUDA.device).code == "no_such_config"


def fragments_before_the_wait(monkeypatch):
    """The next chunk's fragments are written while a product may read those before."""
    wait = wgmma.wait_for
    monkeypatch.setattr(
        wgmma, "wait_for", lambda acc, count, _, a_frag: wait(acc, count, 1, a_frag)
    )


def no_wait_for_the_weights(monkeypatch):
    wait = Barriers.wait

    def unless_alone(self, number, parity):
        return tirx.Evaluate(0) if self.count == 1 else wait(self, number, parity)

    monkeypatch.setattr(Barriers, "wait", unless_alone)


def rows_released_early(monkeypatch):
    """A stage is handed back before the first product has read it."""
    first = Roles._first_product

    def early(self, c):
        release = self._ring.release(lane_of(self._thread), self._ring.at.stage)
        return sequence([release, first(self, c)])

    monkeypatch.setattr(Roles, "_first_product", early)


MISTAKES = {
    fragments_before_the_wait: "fragments|not waited for",
    no_wait_for_the_weights: "before its copy was waited for",
    rows_released_early: "while products may still read it|more arrivals|deadlock",
}


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda m: m.__name__)
def test_a_planted_mistake(mistake, monkeypatch):
    case = layers(400, 64, 128, 64)
    mistake(monkeypatch)
    with pytest.raises(EmulationError, match=MISTAKES[mistake]):
        computes(case, *kernel_of(case, 2, 64, stages=2))


COMPILED = {
    "wide_results": layers(MANY, 256, 64, 256),
    "narrow": layers(MANY, 64, 64, 64),
    "wide": layers(MANY, 128, 128, 128, turned=True, has_residual=True),
    "chunks": layers(MANY, 96, 384, 96, activation="gelu", turned=True),
    "bfloat16": layers(MANY, 128, 256, 128, dtype="bfloat16"),
}


@needs_nvcc
@pytest.mark.cuda_toolchain
def test_registers_are_claimed_and_nothing_is_spilled():
    """Of the default and of the configuration that gives consumers the fewest registers."""
    functions, configs = {}, {}
    for name, case in COMPILED.items():
        members, pair = pair_of(case)
        found = list(back_to_back_configs(pair, CUDA.device))
        for config in (found[0], max(found, key=lambda c: c.consumers)):
            key = f"{name}_{config.consumers}_{config.chunk}"
            configs[key] = config
            functions[key] = back_to_back_gpu(members.program, config)
    for name, code in machine_code(functions).items():
        assert code.stack_bytes == code.spilled_bytes == 0
        assert code.registers == configs[name].registers
