"""Norms of few long rows in two launches: right, in both layouts of images, where it pays."""

import numpy as np
import pytest
from group_kernels import CUDA, group, tensor
from relax_modules import main_module
from tvm import relax

from tests.layout.laid_out import variant_of
from tests.schedule.rows.split_norms import EPSILON, check, drawn, group_norm, parameters, run
from tvm_fusion import transform
from tvm_fusion.core.contract.template import Claim, Refusal
from tvm_fusion.device import parse
from tvm_fusion.program.layouts import Layout
from tvm_fusion.schedule.rows.program.row_program import row_program
from tvm_fusion.schedule.rows.split import forms as split_forms
from tvm_fusion.schedule.rows.split.reduction import split_reduction
from tvm_fusion.schedule.rows.split.space import SplitRowsConfig
from tvm_fusion.schedule.rows.split.template import SplitRows

op = relax.op
GROUPS, CHANNELS, SIZE = 3, 48, 46  # rows of 33,856 elements: 16 channels of 2,116 pixels
SHAPE = (2, CHANNELS, SIZE, SIZE)
NORM = group_norm(GROUPS)


@pytest.fixture(autouse=True)
def short_rows_too(monkeypatch):
    """Split rows that the emulator computes in a second."""
    monkeypatch.setattr(split_forms, "MIN_ROW", 1 << 15)
    monkeypatch.setattr(split_forms, "MIN_ROW_CHANNELS_LAST", 1 << 15)


@pytest.mark.parametrize("offset", [0, 20])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_both_launches_give_the_norm(dtype, offset):
    """A mean of 20 standard deviations costs nothing: squares are about the mean of a part."""
    claim = SplitRows().claim(group(parameters(SHAPE, dtype), NORM, CUDA), CUDA.device)
    assert isinstance(claim, Claim), claim
    assert claim.launches == len(claim.template.emit(claim, CUDA.tvm_target()).kernels) == 2
    inputs = drawn(SHAPE, dtype, offset)
    check(run(claim, inputs, inputs[0].shape, dtype), inputs, dtype, GROUPS)


ONE_GROUP = (1, 16, SIZE, SIZE)  # a single row of 33,856 elements: it has no axis of rows


@pytest.mark.parametrize("is_channels_last", [False, True])
def test_a_norm_of_one_group_is_split(is_channels_last):
    """PoolFormer's norms are over all channels of an image."""
    inputs = drawn(ONE_GROUP, "float16", 3)
    order = (0, 2, 3, 1) if is_channels_last else (0, 1, 2, 3)
    if is_channels_last:
        mod = main_module(parameters(ONE_GROUP), group_norm(1))
        *_, claim = variant_of(mod, Layout(0), "cuda:sm_90a")
        claim = SplitRows().claim(claim.group, CUDA.device)
    else:
        claim = SplitRows().claim(group(parameters(ONE_GROUP), group_norm(1), CUDA), CUDA.device)
    assert isinstance(claim, Claim), claim
    x = np.ascontiguousarray(inputs[0].transpose(order))
    found = run(claim, [x, *inputs[1:]], x.shape, "float16")
    check(found.transpose(np.argsort(order)), inputs, "float16", 1)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("name", ["layer_norm", "rms_norm"])
def test_norms_over_whole_images_are_split(name, batch):
    """Their weights are of every element."""
    names = ("x", "scale", "shift")[: 3 if name == "layer_norm" else 2]
    shapes = [(batch, *ONE_GROUP[1:]), *[ONE_GROUP[1:]] * (len(names) - 1)]
    params = [tensor(n, *s, dtype="float16") for n, s in zip(names, shapes, strict=True)]
    members = group(
        params, lambda emit, *values: getattr(op.nn, name)(*values, axes=[1, 2, 3]), CUDA
    )
    split = split_reduction(row_program(members.program), 8)
    assert split is not None
    rows = [] if batch == 1 else [batch]
    assert all([int(e) for e in p.shape] == [*rows, 8] for p in split.partial)


@pytest.mark.slow
def test_any_configuration_gives_the_norm():
    """The least and the greatest of the design space, and one between them."""
    claim = SplitRows().claim(group(parameters(SHAPE), NORM, CUDA), CUDA.device)
    space = list(SplitRows().configs(claim, CUDA.device))
    assert len({tuple(one.items()) for one in space}) == len(space) > 9
    assert len({one["parts"] for one in space}) > 1
    inputs = drawn(SHAPE, "float16", 0)
    by_work = sorted(space, key=lambda one: tuple(one.values()))
    drawn_one = by_work[np.random.default_rng().integers(len(space))]
    for config in (by_work[0], by_work[-1], drawn_one):
        chosen = SplitRows().configure(claim, config, CUDA.device)
        assert isinstance(chosen, Claim), chosen
        assert chosen.details.config.plain == config
        check(run(chosen, inputs, inputs[0].shape, "float16"), inputs, "float16", GROUPS)


def test_the_default_is_the_first_of_its_space():
    claim = SplitRows().claim(group(parameters(SHAPE), NORM, CUDA), CUDA.device)
    first = next(iter(SplitRows().configs(claim, CUDA.device)))
    assert first == claim.details.config.plain
    again = SplitRows().configure(claim, first, CUDA.device)
    assert (again.bytes, again.parallelism) == (claim.bytes, claim.parallelism)
    refusal = SplitRows().configure(claim, {**first, "parts": 7}, CUDA.device)
    assert isinstance(refusal, Refusal)
    assert "split_rows has no configuration of parts 7" in refusal.sentence


def test_channels_last_images_stay_so(monkeypatch):
    """Sums take the order of the axes that the maps write; both halves have vectors of channels."""
    monkeypatch.setattr(split_forms, "LINE_BYTES", 32)
    *_, claim = variant_of(main_module(parameters(SHAPE), NORM), Layout(0), "cuda:sm_90a")
    assert claim.template.name == "split_rows"
    assert isinstance(claim.details.config, SplitRowsConfig)
    x, *vectors = drawn(SHAPE, "float16", 3)
    channels_last = np.ascontiguousarray(x.transpose(0, 2, 3, 1))
    assert [len(v.shape) for v in claim.group.inputs] == [4, 1, 1]
    values = [channels_last, *vectors]
    found = run(claim, values, channels_last.shape, "float16")
    check(found.transpose(0, 3, 1, 2), [x, *vectors], "float16", GROUPS)


@pytest.mark.parametrize(
    ("spec", "batch", "channels", "reason"),
    [
        ("cuda:sm_90a", 44, CHANNELS, "132 rows are enough"),
        ("cuda:sm_90a", 2, GROUPS, "too short to split"),
        ("rocm:gfx942", 2, CHANNELS, "not an NVIDIA GPU"),
    ],
)
def test_refusals(spec, batch, channels, reason):
    spec = parse(spec)
    members = group(parameters((batch, channels, SIZE, SIZE)), NORM, spec)
    refusal = SplitRows().claim(members, spec.device)
    assert isinstance(refusal, Refusal)
    assert reason in refusal.sentence


def test_concatenations_are_not_read_through_branches():
    """Single elements behind a branch each cost more than a kernel that concatenates."""
    parts = [
        tensor(n, 1, c, 32, 32, dtype="float16") for n, c in zip("ab", (1280, 640), strict=True)
    ]
    vectors = [tensor(n, 1920, dtype="float16") for n in ("scale", "shift")]

    def body(emit, a, b, scale, shift):
        x = emit(op.concat([a, b], 1))
        return op.nn.group_norm(x, scale, shift, 32, 1, [2, 3], epsilon=EPSILON)

    mod = main_module([*parts, *vectors], body)
    with CUDA.tvm_target():
        planned = transform.FuseOperators()(transform.Legalize()(mod))
    assert len(planned["main"].body.blocks[0].bindings) == 2


def test_other_reductions_are_refused():
    """A softmax's sum is of what depends on the maximum; a part of it cannot be joined."""
    members = group([tensor("x", 2, 1 << 16)], lambda emit, x: op.nn.softmax(x), CUDA)
    refusal = SplitRows().claim(members, CUDA.device)
    assert isinstance(refusal, Refusal)
    assert "there is another reduction" in refusal.sentence


def test_sums_of_both_inputs_are_split_alike():
    """Two plain sums: no mean, so no joined squares."""

    def body(emit, x, y):
        total = emit(op.add(emit(op.sum(x, 1, keepdims=True)), emit(op.sum(y, 1, keepdims=True))))
        return emit(op.multiply(x, total))

    members = group([tensor("x", 2, 1 << 16), tensor("y", 2, 1 << 16)], body, CUDA)
    split = split_reduction(row_program(members.program), 8)
    assert split is not None
    assert [len(s.stages) for s in (split.first, split.second)] == [4, 3]
    assert all([int(e) for e in p.shape] == [2, 8] for p in split.partial)
