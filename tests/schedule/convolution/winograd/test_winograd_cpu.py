"""Winograd convolutions on CPUs: results within a derived bound of float64, permission, choice."""

import dataclasses

import numpy as np
import pytest
import tvm
from group_kernels import tensor
from relax_modules import main_module
from rounding import assert_sums_close
from tvm import relax, tirx

import tvm_fusion
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
from tests.schedule.convolution.winograd.winograd_cases import (
    DEFAULT,
    PERMITTED,
    as_winograd,
    check,
    magnitude,
)
from tvm_fusion.core.decisions import recording
from tvm_fusion.core.flags import APPROXIMATE
from tvm_fusion.device import parse
from tvm_fusion.pipeline import relax_pipeline
from tvm_fusion.schedule.convolution.dense.config import ConvConfig, default
from tvm_fusion.schedule.convolution.dense.kernel import dense_cpu
from tvm_fusion.schedule.convolution.template import CpuConvolution
from tvm_fusion.schedule.convolution.winograd.config import WinogradConfig
from tvm_fusion.schedule.convolution.winograd.transforms import INPUT, OUTPUT, SIZES, WEIGHT

pytestmark = pytest.mark.slow_beyond(2)

op = relax.op
NONE = (0, 0, 0, 0)
CASES = {
    "whole tiles": Conv(32, 32, (8, 12)),
    "7 x 7": Conv(32, 48, (7, 7)),
    "14 x 14": Conv(16, 32, (14, 14), residual=True),
    "13 x 9, odd channels, two images": Conv(20, 41, (13, 9), residual=True, batch=2),
    "no padding": Conv(33, 32, (11, 7), padding=NONE),
    "padded on two sides": Conv(16, 20, (9, 10), padding=(0, 1, 1, 0)),
    "an image smaller than a tile": Conv(16, 16, (3, 2)),
    "fewer channels than a vector": Conv(17, 3, (10, 6)),
}
SHAPES = (
    {"tiles": 1, "height": 1, "vectors": 1, "chunk": 2},
    {"tiles": 7, "height": 3, "vectors": 2},
    {"tiles": 4, "height": 4, "vectors": 3, "chunk": 2},
)


@pytest.mark.parametrize("m", SIZES)
def test_transforms_are_exact(m):
    """Of all pairs of unit vectors, which span images and windows."""
    at, bt, g = (np.array(t[m]) for t in (OUTPUT, INPUT, WEIGHT))
    for place, tap in np.ndindex(m + 2, 3):
        d, w = np.eye(m + 2, dtype=int)[place], np.eye(3, dtype=int)[tap]
        assert list(at @ ((g @ w) * (bt @ d))) == [int(place == i + tap) for i in range(m)]


@pytest.mark.slow
@pytest.mark.parametrize("m", SIZES)
@pytest.mark.parametrize("case", CASES)
def test_within_the_bound_of_float64(case, m):
    check(CASES[case], m)


@pytest.mark.slow
@pytest.mark.parametrize("sizes", SHAPES)
def test_tiles_of_other_sizes(sizes):
    check(Conv(20, 72, (13, 17), residual=True), 4, **sizes)


@pytest.mark.slow
@pytest.mark.parametrize("m", SIZES)
def test_prologue(m):
    """Arithmetic of the image, of a padding that stays zero."""
    half = relax.const(np.float32(0.5))
    prologue = (lambda emit, x: emit(op.add(x, half)), lambda x: x + np.float32(0.5))
    check(Conv(20, 32, (7, 10)), m, prologue=prologue)


@pytest.mark.slow
def test_a_narrower_vector():
    check(Conv(20, 28, (9, 13), block_in=8, block_out=8, residual=True), 4, parse("cpu:haswell"))


@pytest.mark.slow
@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize("m", SIZES)
def test_sums_are_pooled_in_the_tile(m):
    conv = Conv(20, 40, (9, 14), batch=2)

    def write(emit, x):
        y = op.nn.conv2d(unblock(emit, x, conv.c), relax.const(conv.weights()[0]), padding=1)
        return block(emit, emit(op.nn.max_pool2d(emit(y), (2, 2), (2, 2))), 16)

    claim = as_winograd(claimed(conv.params(), write), m)
    (y,) = run(claim, {"x": to_blocks(conv.image(), 16)})
    exact = convolve(conv.image().astype("float64"), conv.weights()[0].astype("float64"), conv)
    size, roundings = magnitude(m, conv.image(), conv.weights()[0], conv.padding)

    def pool(a):
        return a[:, :, :8].reshape(2, conv.k, 4, 2, 7, 2).max((3, 5))

    # The largest of four values is no further from theirs than the worst of them.
    assert_sums_close(from_blocks(y)[:, : conv.k], pool(exact), pool(size), roundings)


@pytest.mark.slow
def test_a_symbolic_number_of_images_in_nhwc():
    conv = Conv(48, 32, (7, 10), batch=3)
    w = conv.weights()[0]

    def write(emit, x):
        return op.nn.conv2d(x, relax.const(w), padding=1, data_layout="NHWC")

    claim = claimed([tensor("x", tirx.Var("n", "int64"), 7, 10, 48)], write)
    x = np.ascontiguousarray(conv.image().transpose(0, 2, 3, 1))
    y = tvm.runtime.tensor(np.full((3, 7, 10, 32), np.nan, "float32"))
    (found,) = run(as_winograd(claim, 4), {"x": x}, results=[y])
    exact = convolve(conv.image().astype("float64"), w.astype("float64"), conv)
    size, roundings = magnitude(4, conv.image(), w, conv.padding)
    assert_sums_close(found.transpose(0, 3, 1, 2), exact, size, roundings)


LARGE = Conv(64, 64, (28, 28))


def test_off_by_default():
    claim = claimed(LARGE.params(), LARGE.body, DEFAULT)
    assert isinstance(claim.details.config, ConvConfig)
    decision = CpuConvolution().remark(claim, DEFAULT.device)
    assert (decision.verdict, decision.code) == ("refused", "needs_flag")
    assert "times as fast" in decision.sentence
    assert "--allow approximate" in decision.sentence
    made = CpuConvolution().emit(claim, DEFAULT.tvm_target()).kernels[0].func
    problem, program = claim.details.problem, claim.group.program
    direct, _ = dense_cpu(program, problem, default(problem, DEFAULT.device))
    tvm.ir.assert_structural_equal(made, direct)


def test_used_where_it_is_allowed():
    claim = claimed(LARGE.params(), LARGE.body, PERMITTED)
    plain = claimed(LARGE.params(), LARGE.body, DEFAULT)
    assert isinstance(claim.details.config, WinogradConfig)
    assert CpuConvolution().remark(claim, PERMITTED.device).verdict == "accepted"
    assert claim.flops_to_price < plain.flops_to_price
    assert claim.bytes == plain.bytes


@pytest.mark.parametrize(
    ("conv", "code"),
    [
        (dataclasses.replace(LARGE, stride=(2, 2)), "no_winograd"),
        (dataclasses.replace(LARGE, dilation=(2, 2), padding=(2, 2, 2, 2)), "no_winograd"),
        (dataclasses.replace(LARGE, window=(5, 5), padding=(2, 2, 2, 2)), "no_winograd"),
        (dataclasses.replace(LARGE, groups=2), "no_winograd"),
        (dataclasses.replace(LARGE, block_out=0), "no_winograd"),
        (dataclasses.replace(LARGE, c=3, block_in=0), "no_winograd"),
        (dataclasses.replace(LARGE, k=16), "no_winograd"),
        (Conv(512, 512, (7, 7)), "no_winograd_gain"),
    ],
)
def test_refused_with_a_reason(conv, code):
    claim = claimed(conv.params(), conv.body, PERMITTED)
    assert isinstance(claim.details.config, ConvConfig)
    assert CpuConvolution().remark(claim, PERMITTED.device).code == code


@pytest.mark.slow
def test_design_space():
    claim = claimed(LARGE.params(), LARGE.body, PERMITTED)
    template, device = CpuConvolution(), PERMITTED.device
    configs = list(template.configs(claim, device))
    assert len({tuple(c.items()) for c in configs}) == len(configs) > 10
    own = template.configure(claim, configs[0], device)
    assert own.details.config == claim.details.config
    for config in np.random.default_rng().choice(configs, 2, replace=False):
        chosen = template.configure(claim, config, device).details.config
        check(LARGE, **{f.name: getattr(chosen, f.name) for f in dataclasses.fields(chosen)[1:]})


def test_the_permission_is_read_back_from_a_target():
    assert parse(PERMITTED.tvm_target()).device.approximates
    assert not parse(DEFAULT.tvm_target()).device.approximates
    assert not parse("cuda:sm_90a").permitting([APPROXIMATE]).device.approximates


def three_convolutions(emit, x):
    conv = Conv(64, 64, (28, 28))
    for n in range(3):
        x = emit(op.nn.relu(emit(op.nn.conv2d(x, relax.const(conv.weights(n)[0]), padding=1))))
    return x


def explained(allow):
    """Explain a convolution, whose image and results are blocked for it."""
    mod = main_module([tensor("x", 1, 64, 28, 28)], three_convolutions)
    found = tvm_fusion.explain(mod, DEFAULT.text, tvm_fusion.FusionConfig(allow=allow))
    return {group.arithmetic for group in found.groups}


@pytest.mark.slow
def test_explained():
    assert explained(()) == {""}
    assert any(name.startswith("Winograd F(") for name in explained((APPROXIMATE,)))


def kernels(spec):
    """Compile three convolutions, of which the one in the middle is between blocked layouts."""
    mod = main_module([tensor("x", 1, 64, 28, 28)], three_convolutions)
    with spec.tvm_target(), recording() as decisions:
        funcs = relax_pipeline()(mod).functions.values()
    names = {p.name for f in funcs if isinstance(f, tirx.PrimFunc) for p in f.params}
    return names, [d for d in decisions if "winograd" in d.code or d.code == "needs_flag"]


def test_compiled_without_permission():
    names, decisions = kernels(DEFAULT)
    assert not any("winograd" in name for name in names)
    assert all((d.verdict, d.code) == ("refused", "needs_flag") for d in decisions)


def test_compiled_with_permission():
    names, decisions = kernels(PERMITTED)
    assert any("winograd" in name for name in names)
    accepted = [d for d in decisions if d.verdict == "accepted"]
    assert {d.code for d in accepted} == {"winograd"}
    assert all(d.producer for d in accepted)
