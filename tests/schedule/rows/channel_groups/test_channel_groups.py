"""Norms of groups of few channels, channels last: blocks take pixels, all groups together."""

import numpy as np
import pytest
from group_kernels import CUDA, tensor
from relax_modules import main_module
from tvm import relax, tirx

from tests.layout.laid_out import variant_of
from tests.schedule.rows.split_norms import EPSILON, check, drawn, group_norm, parameters, run
from tvm_fusion.core.contract.template import Claim, Refusal
from tvm_fusion.core.tir.loops import find
from tvm_fusion.program.layouts import Layout
from tvm_fusion.schedule.rows.channel_groups.pixel_loop import Invariants
from tvm_fusion.schedule.rows.channel_groups.space import ChannelGroupsConfig
from tvm_fusion.schedule.rows.split import forms as split_forms
from tvm_fusion.schedule.rows.split.template import SplitRows
from tvm_fusion.schedule.rows.template import Rows

op = relax.op
VECTORIZED = tirx.ForKind.VECTORIZED


@pytest.fixture(autouse=True)
def short_rows_too(monkeypatch):
    """Take rows that the emulator computes in a second."""
    monkeypatch.setattr(split_forms, "MIN_ROW_BY_PIXELS", 64)


def channels_last(shape, groups, dtype="float16", body=None):
    """Claim the norm of an image whose channels are last in memory."""
    mod = main_module(parameters(shape, dtype), body or group_norm(groups))
    *_, claim = variant_of(mod, Layout(0), "cuda:sm_90a")
    return SplitRows().claim(claim.group, CUDA.device)


def normalized(claim, inputs, dtype):
    """Run a claim on an image in the layout of the graph; the result is in that layout as well."""
    x, *vectors = inputs
    last = np.ascontiguousarray(x.transpose(0, 2, 3, 1))
    return run(claim, [last, *vectors], last.shape, dtype).transpose(0, 3, 1, 2)


@pytest.mark.slow_beyond(7)
@pytest.mark.parametrize("offset", [0, 20])
@pytest.mark.parametrize(
    ("shape", "groups", "dtype"),
    [
        ((2, 24, 18, 14), 6, "float16"),  # a vector is of two groups
        ((1, 80, 12, 10), 8, "float16"),  # groups begin inside of vectors
        ((2, 24, 9, 11), 6, "float32"),
        ((1, 40, 13, 13), 20, "float16"),  # 169 pixels: 13 parts of 13
        ((3, 16, 17, 1), 2, "float16"),  # a part: a whole image, of 17 pixels
    ],
)
def test_whole_pixels_give_the_norm(shape, groups, dtype, offset):
    """A mean of 20 standard deviations costs nothing: columns are summed about their first."""
    claim = channels_last(shape, groups, dtype)
    assert isinstance(claim, Claim), claim
    assert isinstance(claim.details.config, ChannelGroupsConfig)
    assert claim.launches == len(claim.template.emit(claim, CUDA.tvm_target()).kernels) == 2
    inputs = drawn(shape, dtype, offset)
    check(normalized(claim, inputs, dtype), inputs, dtype, groups)


def test_an_outlier_at_the_shift_is_no_mistake():
    """The first pixel of a part is thousands of deviations of all others off their mean."""
    shape, groups = (1, 24, 18, 14), 6
    claim = channels_last(shape, groups)
    inputs = drawn(shape, "float16", 0)
    inputs[0][:, :, 0, 0] = 3000
    check(normalized(claim, inputs, "float16"), inputs, "float16", groups)


def test_any_configuration_gives_the_norm():
    """All keys of the design space; masked lines of pixels among them."""
    shape, groups = (1, 24, 23, 12), 6
    claim = channels_last(shape, groups)
    space = list(SplitRows().configs(claim, CUDA.device))
    assert space[0] == claim.details.config.plain
    assert len({tuple(one.items()) for one in space}) == len(space) > 2
    inputs = drawn(shape, "float16", 0)
    by_work = sorted(space, key=lambda one: tuple(one.values()))
    for config in (by_work[0], by_work[-1]):
        chosen = SplitRows().configure(claim, config, CUDA.device)
        assert isinstance(chosen, Claim), chosen
        assert chosen.details.config.plain == config
        check(normalized(chosen, inputs, "float16"), inputs, "float16", groups)
    refusal = SplitRows().configure(claim, {**space[0], "parts": 7}, CUDA.device)
    assert isinstance(refusal, Refusal)
    assert "split_rows has no configuration of parts 7" in refusal.sentence


def test_other_operands_are_part_of_the_terms():
    """An embedded time is added to each channel before, an image after."""
    shape, groups = (2, 24, 10, 8), 6

    def body(emit, x, scale, shift, time, skip):
        y = emit(op.add(x, time))
        y = emit(op.nn.group_norm(y, scale, shift, groups, 1, [2, 3], epsilon=EPSILON))
        return emit(op.add(y, skip))

    more = [tensor("time", 2, 24, 1, 1, dtype="float16"), tensor("skip", *shape, dtype="float16")]
    mod = main_module([*parameters(shape), *more], body)
    *_, group, claim = variant_of(mod, Layout(0), "cuda:sm_90a")
    claim = SplitRows().claim(claim.group, CUDA.device)
    assert isinstance(claim, Claim), claim
    x, scale, shift = drawn(shape, "float16", 0)
    rng = np.random.default_rng(1)
    time, skip = (rng.standard_normal(s).astype("float16") for s in ((2, 24, 1, 1), shape))
    arrays = {"x": x, "scale": scale, "shift": shift, "time": time, "skip": skip}
    named = [arrays[group.original[v].name] for v in claim.group.inputs]
    images = [v.transpose(0, 2, 3, 1) if v.shape == shape else v for v in named]
    last = (2, 10, 8, 24)
    given = [
        np.ascontiguousarray(v).reshape([int(e) for e in value.shape])
        for v, value in zip(images, claim.group.inputs, strict=True)
    ]
    found = run(claim, given, last, "float16").transpose(0, 3, 1, 2).astype("float64")
    sums = (x + time).astype("float64").reshape(2, groups, -1)
    y = (sums - sums.mean(-1, keepdims=True)) / np.sqrt(sums.var(-1, keepdims=True) + EPSILON)
    y = y.reshape(shape) * scale[:, None, None].astype("float64") + shift[:, None, None]
    assert np.abs(found - (y + skip)).max() <= 2e-2


def test_few_pixels_take_one_launch():
    """Groups are rows: a block each, which reads the channels of a pixel as the map writes them."""
    shape, groups = (2, 40, 9, 11), 5
    mod = main_module(parameters(shape), group_norm(groups))
    *_, claim = variant_of(mod, Layout(0), "cuda:sm_90a")
    claim = Rows().claim(claim.group, CUDA.device)
    assert isinstance(claim, Claim), claim
    assert (claim.launches, claim.parallelism) == (1, 2 * groups)
    (kernel,) = claim.template.emit(claim, CUDA.tvm_target()).kernels
    vectors = [loop for loop in find(kernel.func.body, tirx.For) if loop.kind == VECTORIZED]
    assert {int(loop.extent) for loop in vectors} == {8}
    inputs = drawn(shape, "float16", 0)
    check(normalized(claim, inputs, "float16"), inputs, "float16", groups)


def test_invariants_of_a_norm_are_a_factor_and_a_term():
    """``((x * a - b) * c + d)`` has two: one multiply-add is left for each element."""
    x = tirx.decl_buffer([64], "float32", "x")
    i, a, b, c, d = (tirx.Var("i", "int64"), *(tirx.Var(n, "float32") for n in "abcd"))
    loaded = tirx.BufferLoad(x, [i])
    y = (loaded * a - b) * c + d
    for is_linear, count in ((True, 2), (False, 4)):
        found = Invariants(lambda load: True, is_linear)
        left = found.take_out(y * tirx.sigmoid(y))
        assert len(found.values) == count
        assert str(left).count("x[i]") == 2


def test_vectors_across_pixels_are_refused():
    """Of 12 channels a pixel is no multiple of 16 bytes."""
    refusal = channels_last((1, 12, 92, 92), 3)
    assert isinstance(refusal, Refusal)
    assert "8 bytes of a row are contiguous" in refusal.sentence
