"""Design spaces of CPU templates: enumerated as plain data, and every member emitted and right."""

import json

import numpy as np
import pytest
import tvm
from group_kernels import CPU, close
from relax_modules import main_module
from tvm import relax
from tvm.ir.transform import Sequential

from tvm_fusion import transform
from tvm_fusion.core.contract.template import TEMPLATE, Claim, Refusal
from tvm_fusion.core.contract.templates import template
from tvm_fusion.core.contract.tuned import Tuned
from tvm_fusion.core.decisions import recording
from tvm_fusion.fusion.fuse import FuseOperators
from tvm_fusion.schedule.kernels import ScheduleKernels
from tvm_fusion.schedule.stage.emit import group_of, is_group

op = relax.op


def weight(*shape):
    return np.random.default_rng().standard_normal(shape).astype("float32") / 8


W, SCALE, KERNEL, DEPTHWISE = weight(72, 70), weight(72), weight(40, 32, 3, 3), weight(32, 1, 3, 3)


def dense(emit, x):
    return op.tanh(emit(op.matmul(x, relax.const(W))))


def norm_dense(emit, x):
    normal = emit(op.nn.rms_norm(x, relax.const(SCALE), [-1]))
    return op.matmul(normal, relax.const(W))


def convolution(emit, x):
    y = emit(op.nn.conv2d(x, relax.const(KERNEL), padding=1))
    y = emit(op.nn.conv2d(y, relax.const(KERNEL[:32, :1].repeat(40, 1)), padding=1))
    return op.nn.relu(y)


def depthwise(emit, x):
    y = emit(op.nn.conv2d(x, relax.const(KERNEL[:32]), padding=1))
    y = emit(op.nn.conv2d(y, relax.const(DEPTHWISE), padding=1, groups=32))
    return emit(op.nn.conv2d(y, relax.const(KERNEL[:32]), padding=1))


def attention(emit, x):
    q, k, v = (emit(op.multiply(x, relax.const(np.float32(n)))) for n in (0.3, 0.5, 0.7))
    scores = emit(op.matmul(q, emit(op.permute_dims(k, [0, 2, 1]))))
    return op.matmul(emit(op.nn.softmax(scores)), v)


def rows(emit, x):
    return op.nn.softmax(emit(op.tanh(x)))


def transposed(emit, x):
    return op.tanh(emit(op.permute_dims(x, [1, 0])))


CASES = {
    "attention": (attention, (2, 37, 40)),
    "rows": (rows, (9, 130)),
    "elementwise": (transposed, (41, 53)),
    "contraction": (dense, (29, 72)),
    "row_contraction": (norm_dense, (5, 72)),
    "convolution": (convolution, (1, 32, 9, 13)),
    "depthwise": (depthwise, (1, 32, 9, 13)),
}


def planned(case):
    body, shape = CASES[case]
    params = [relax.Var("x", relax.TensorType(shape, "float32"))]
    stages = [transform.Legalize(), transform.FuseOperators(), transform.PlanLayout()]
    with CPU.tvm_target():
        return Sequential(stages)(main_module(params, body))


def claims(mod):
    for func in mod.functions.values():
        if is_group(func):
            claimant = template(str(func.attrs[TEMPLATE]), CPU.tvm_target())
            claim = claimant.claim(group_of(mod, func), CPU.device)
            assert isinstance(claim, Claim)
            if len(list(claimant.configs(claim, CPU.device))) > 1:
                yield claim


def computed(mod, config, x):
    """Run a module whose groups all take a configuration, where it is in their design space."""

    def lookup(claim, device):
        mine = config in list(claim.template.configs(claim, device))
        return Tuned(config, 1.0, 2.0, "a test") if mine else None

    with CPU.tvm_target(), recording() as decisions:
        scheduled = ScheduleKernels(FuseOperators, lookup)(mod)
        lowered = Sequential([transform.LowerToVM()])(scheduled)
    assert "tuned" in {d.code for d in decisions}
    assert not [d for d in decisions if d.verdict == "fallback"]
    built = tvm.compile(lowered, CPU.tvm_target(), relax_pipeline=None, tir_pipeline="tvm_fusion")
    return relax.VirtualMachine(built, tvm.cpu())["main"](tvm.runtime.tensor(x)).numpy()


def convolve(x, w, groups=1):
    x = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    n, c, rows, columns = x.shape
    y = 0
    for r in range(3):
        for s in range(3):
            part = x[:, :, r : r + rows - 2, s : s + columns - 2]
            part = part.reshape(n, groups, c // groups, rows - 2, columns - 2)
            taps = w[:, :, r, s].reshape(groups, -1, c // groups).astype("float64")
            y = y + np.einsum("ngchw,gkc->ngkhw", part, taps)
    return y.reshape(n, -1, rows - 2, columns - 2)


def reference(case, x):
    x = x.astype("float64")
    if case == "contraction":
        return np.tanh(x @ W)
    if case in ("attention", "rows"):
        scores = 0.15 * x @ x.transpose(0, 2, 1) if case == "attention" else np.tanh(x)
        p = np.exp(scores - scores.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        return p @ (0.7 * x) if case == "attention" else p
    if case == "elementwise":
        return np.tanh(x).T
    if case == "row_contraction":
        return (x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * SCALE) @ W
    y = convolve(x, KERNEL if case == "convolution" else KERNEL[:32])
    if case == "convolution":
        return np.maximum(convolve(y, KERNEL[:32, :1].repeat(40, 1)), 0)
    return convolve(convolve(y, DEPTHWISE, 32), KERNEL[:32])


@pytest.mark.parametrize("case", CASES)
def test_the_space_is_plain_data_with_the_default_first(case):
    names = {claim.template.name for claim in claims(planned(case))}
    assert (case if case in names else "convolution") in names
    for claim in claims(planned(case)):
        configs = list(claim.template.configs(claim, CPU.device))
        texts = [json.dumps(config, sort_keys=True) for config in configs]
        assert len(set(texts)) == len(texts) > 3
        assert len({tuple(sorted(config)) for config in configs}) == 1
        again = claim.template.configure(claim, configs[0], CPU.device)
        assert type(again.details) is type(claim.details)
        assert list(claim.template.configs(again, CPU.device)) == configs


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_drawn_configurations_compute_the_same(case):
    mod = planned(case)
    rng = np.random.default_rng()
    x = rng.standard_normal(CASES[case][1]).astype("float32")
    for claim in claims(mod):
        configs = list(claim.template.configs(claim, CPU.device))
        for number in rng.choice(len(configs), 3, replace=False):
            close([computed(mod, configs[number], x)], [reference(case, x)])


def test_depthwise_groups_have_choices():
    found = claims(planned("depthwise"))
    defaults = [next(iter(claim.template.configs(claim, CPU.device))) for claim in found]
    assert {"lanes", "width", "band", "part"} in map(set, defaults)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("change", [{"mr": 10**6, "width": 10**6}, {"more": 1}])
def test_what_is_not_in_the_space_is_refused(case, change):
    for claim in claims(planned(case)):
        config = {**next(iter(claim.template.configs(claim, CPU.device))), **change}
        refusal = claim.template.configure(claim, config, CPU.device)
        assert isinstance(refusal, Refusal)
        assert "has no configuration of" in refusal.sentence


def test_a_configuration_that_is_unfit_is_told_and_the_default_taken():
    mod = planned("contraction")
    with CPU.tvm_target(), recording() as decisions:
        default = ScheduleKernels(FuseOperators)(mod)
        unfit = ScheduleKernels(FuseOperators, lambda *_: Tuned({"mr": 1}, 1.0, 2.0, "record 7"))
        tvm.ir.assert_structural_equal(unfit(mod), default)
    (decision,) = [d for d in decisions if d.code == "tuned_config_unfit"]
    assert decision.verdict == "fallback"
    assert decision.sentence.startswith("The configuration of record 7 is not used: contraction")


def test_records_that_do_not_fit_are_told_and_the_default_taken():
    mod = planned("contraction")
    told = iter([Refusal("records_of_other_devices", "They are of another CPU.")])
    with CPU.tvm_target(), recording() as decisions:
        default = ScheduleKernels(FuseOperators)(mod)
        other = ScheduleKernels(FuseOperators, lambda *_: next(told, None))(mod)
    tvm.ir.assert_structural_equal(other, default)
    found = [(d.verdict, d.sentence) for d in decisions if d.code == "records_of_other_devices"]
    assert found == [("fallback", "They are of another CPU.")]
