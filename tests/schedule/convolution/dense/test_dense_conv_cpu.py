"""Dense direct convolutions on CPUs against float64, over blocked layouts."""

import dataclasses
import re

import numpy as np
import pytest
import tvm
import tvm_ffi
from assembly import inner_block
from group_kernels import CPU, group, tensor
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from relax_modules import main_module
from tvm import relax, s_tir, tirx

from tests.schedule.convolution.conv_cases import (
    Conv,
    block,
    blocked_shape,
    check,
    claimed,
    convolve,
    from_blocks,
    may_be_refused,
    other_tiles,
    run,
    to_blocks,
    unblock,
)
from tvm_fusion.core.contract.template import Refusal
from tvm_fusion.device import parse
from tvm_fusion.pipeline import relax_pipeline
from tvm_fusion.schedule.contraction.cpu.blocking import PER_CYCLE
from tvm_fusion.schedule.convolution.dense.config import L1_BYTES, STREAM, ConvConfig
from tvm_fusion.schedule.convolution.template import CpuConvolution

pytestmark = pytest.mark.slow_beyond(2)

op = relax.op
NONE = (0, 0, 0, 0)

CASES = {
    "1x1": Conv(32, 48, (7, 7), (1, 1), padding=NONE),
    "1x1, strided": Conv(32, 32, (9, 13), (1, 1), (2, 2), NONE),
    "3x3, lines of two rows": Conv(32, 32, (7, 7)),
    "odd channels": Conv(20, 33, (13, 5), residual=True, batch=2),
    "strided, asymmetric padding": Conv(17, 16, (13, 14), stride=(2, 2), padding=(0, 1, 2, 1)),
    "dilated": Conv(16, 20, (9, 11), dilation=(2, 2), padding=(2, 2, 2, 2)),
    "groups of whole vectors": Conv(24, 64, (7, 6), groups=2),
    "groups of four channels": Conv(32, 32, (7, 9), groups=8, residual=True),
    "groups of 24 channels": Conv(24, 48, (9, 7), (1, 1), padding=NONE, groups=2),
    "groups within vectors": Conv(40, 136, (7, 9), (1, 1), padding=NONE, groups=4, residual=True),
    "groups within vectors, 3x3": Conv(102, 60, (6, 7), groups=3),
    "groups within vectors, plain": Conv(15, 63, (6, 7), groups=3, block_in=0),
    "plain image, few channels": Conv(3, 40, (17, 18), (7, 7), (2, 2), (3, 3, 3, 3), block_in=0),
    "plain results": Conv(20, 33, (13, 5), residual=True, batch=2, block_out=0),
    "plain results of few channels": Conv(16, 3, (9, 21), block_out=0),
    "plain results, rows of odd columns": Conv(16, 40, (5, 21), block_out=0),
    "plain results, short rows": Conv(32, 40, (4, 12), (1, 1), padding=NONE, block_out=0),
    "plain results, rows of six": Conv(16, 24, (7, 6), batch=2, block_out=0),
    "plain throughout, strided": Conv(5, 8, (9, 13), stride=(2, 2), block_in=0, block_out=0),
    "groups, plain results": Conv(32, 32, (7, 9), groups=8, block_out=0),
    "one row of pixels": Conv(16, 16, (1, 19), (1, 5), padding=(0, 2, 0, 2)),
    "one pixel": Conv(40, 70, (1, 1), (1, 1), padding=NONE),
}


@pytest.mark.parametrize("case", CASES)
def test_against_float64(case):
    claim = check(CASES[case])
    assert claim.launches == 1
    assert isinstance(claim.details.config, ConvConfig)


def test_blocks_of_a_narrower_vector():
    """AVX2, whose tiles are lower and whose blocks are half as long."""
    spec = parse("cpu:haswell")
    claim = check(Conv(20, 28, (9, 13), block_in=8, block_out=8, residual=True), spec)
    assert claim.details.config.lanes == 8


sizes = st.integers(1, 15)


@st.composite
def convolutions(draw):
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    window = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    dilation = draw(st.sampled_from([(1, 1), (2, 1), (2, 2)]))
    conv = Conv(
        draw(st.integers(2, 19)) * groups,
        draw(st.integers(2, 50)) * groups,
        (draw(sizes), draw(sizes)),
        window,
        draw(st.sampled_from([(1, 1), (2, 2), (1, 3)])),
        tuple(draw(st.integers(0, 2)) for _ in range(4)),
        dilation,
        groups,
        draw(st.integers(1, 2)),
        residual=draw(st.booleans()),
    )
    assume(min(conv.out_size) > 0)
    return conv


@pytest.mark.slow
@settings(max_examples=30)
@given(convolutions())
def test_drawn_problems(conv):
    """What is claimed is right; most are claimed."""
    members = group(conv.params(), conv.body)
    claim = CpuConvolution().claim(members, CPU.device)
    if isinstance(claim, Refusal):
        assert may_be_refused(conv) or conv.k // conv.groups < 8, claim
        return
    check(conv, claim=claim)


@pytest.mark.slow
def test_every_tile_is_right():
    """Tiles and tasks that the model would not choose, with remainders in all directions."""
    conv = Conv(20, 70, (9, 11), residual=True)
    for claim in other_tiles(conv):
        check(conv, claim=claim)


@pytest.mark.slow
@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize("window", [1, 3])
def test_every_tile_of_groups_is_right(window):
    """Tiles of one and of several groups, tasks of several tiles; the last tile is of zeros."""
    padding = (window // 2,) * 4
    conv = Conv(66, 50, (5, 7), (window, window), padding=padding, groups=2)
    claim = claimed(conv.params(), conv.body)
    lanes = claim.details.config.lanes
    for vectors, chunk in ((1, 3), (2, 1), (3, 1), (4, 1)):
        config = ConvConfig(lanes, 1, 7, vectors, 2, chunk)
        details = dataclasses.replace(claim.details, config=config)
        check(conv, claim=dataclasses.replace(claim, details=details))


def test_arithmetic_of_the_image_is_done_in_the_copy():
    """Batch norm and ReLU before a convolution; zeros of the padding stay zeros."""
    conv = Conv(20, 33, (7, 9))
    shift = np.random.default_rng(3).standard_normal((1, 20, 1, 1)).astype("float32")

    def prologue(emit, x):
        return emit(op.nn.relu(emit(op.add(x, relax.const(shift)))))

    check(conv, prologue=(prologue, lambda x: np.maximum(x + shift, 0)))


def test_a_scale_of_channels_goes_into_the_copy():
    """As in a squeeze-excite block, whose scale depends on the image."""
    conv = Conv(32, 24, (7, 7), (1, 1), padding=(0, 0, 0, 0))
    params = [*conv.params(), tensor("s", 1, 32, 1, 1)]

    def body(emit, x, s):
        scale = emit(op.sigmoid(s))
        return conv.body(emit, x, prologue=lambda emit, x: emit(op.multiply(x, scale)))

    claim = claimed(params, body)
    x, s = conv.image(), np.random.default_rng(4).standard_normal((1, 32, 1, 1)).astype("float32")
    (y,) = run(claim, {"x": to_blocks(x, 16), "s": s})
    expected = conv.reference(x / (1 + np.exp(-s.astype("float64"))))
    np.testing.assert_allclose(from_blocks(y)[:, :24], expected, atol=2e-5)


def test_several_results_and_long_ones():
    conv = Conv(16, 20, (6, 7))

    def body(emit, x):
        w, _ = conv.weights()
        y = emit(op.nn.conv2d(unblock(emit, x, 16), relax.const(w), padding=conv.padding))
        long = emit(op.tanh(emit(op.exp(emit(op.sin(y))))))
        return [block(emit, y, 16), block(emit, long, 16)]

    claim = claimed(conv.params(), body)
    x = conv.image()
    first, second = (from_blocks(y) for y in run(claim, {"x": to_blocks(x, 16)}))
    w = conv.weights()[0].astype("float64")
    expected = convolve(x.astype("float64"), w, conv)
    np.testing.assert_allclose(first[:, :20], expected, atol=2e-5)
    np.testing.assert_allclose(second[:, :20], np.tanh(np.exp(np.sin(expected))), atol=2e-5)
    assert not first[:, 20:].any()
    assert not second[:, 20:].any()


@pytest.mark.parametrize("groups", [3, 16])
def test_shuffled_channels(groups):
    """As in ShuffleNet: channels of all groups follow each other; a plain result besides."""
    conv = Conv(48, 48, (5, 7), (1, 1), padding=NONE, groups=groups if groups == 3 else 1)

    def body(emit, x):
        w, _ = conv.weights()
        y = unblock(emit, x, 48)
        y = emit(op.nn.relu(emit(op.nn.conv2d(y, relax.const(w), groups=conv.groups))))
        z = emit(op.reshape(y, (1, groups, 48 // groups, 5, 7)))
        z = emit(op.reshape(emit(op.permute_dims(z, [0, 2, 1, 3, 4])), (1, 48, 5, 7)))
        return [block(emit, y, 16), block(emit, z, 16)]

    claim = claimed(conv.params(), body)
    x = conv.image()
    y, shuffled = (from_blocks(r) for r in run(claim, {"x": to_blocks(x, 16)}))
    expected = np.maximum(
        convolve(x.astype("float64"), conv.weights()[0].astype("float64"), conv), 0
    )
    np.testing.assert_allclose(y, expected, atol=2e-5)
    order = np.arange(48).reshape(groups, -1).T.ravel()
    np.testing.assert_allclose(shuffled, expected[:, order], atol=2e-5)


def test_symbolic_batch():
    n = tirx.Var("n", "int64")
    w, _ = Conv(16, 32, (7, 7)).weights()

    def body(emit, x):
        y = emit(op.nn.conv2d(x, relax.const(w), padding=1, data_layout="NHWC"))
        return op.nn.relu(y)

    claim = claimed([tensor("x", n, 7, 7, 16)], body)
    x = np.random.default_rng(0).standard_normal((5, 7, 7, 16)).astype("float32")
    (y,) = run(claim, {"x": x})
    conv = Conv(16, 32, (7, 7), batch=5)
    expected = np.maximum(convolve(x.transpose(0, 3, 1, 2).astype("float64"), w, conv), 0)
    np.testing.assert_allclose(y.transpose(0, 3, 1, 2), expected, atol=2e-5)


REFUSED = {
    "a matrix product": lambda emit, x: op.matmul(x, relax.const(np.ones((16, 32), "float32"))),
    "a sum": lambda emit, x: op.sum(x, axis=[1]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_convolution_is_refused(case):
    members = group([tensor("x", 37, 16)], REFUSED[case])
    answer = CpuConvolution().claim(members, CPU.device)
    assert isinstance(answer, Refusal)
    assert answer.code == "not_mine"


def test_plain_results_cost_more():
    """Their channels are not contiguous: elements are stored one by one, once they are computed."""
    conv = Conv(16, 32, (7, 7), residual=True)
    plain = dataclasses.replace(conv, block_out=0)
    few = dataclasses.replace(conv, k=2, block_out=0)
    blocked, stored, narrow = (claimed(c.params(), c.body) for c in (conv, plain, few))
    assert stored.flops_to_price > blocked.flops_to_price
    assert (
        narrow.flops_to_price > stored.flops_to_price / 16
    )  # lanes of a vector that no channel fills
    assert stored.launches == 1
    assert stored.flops == blocked.flops  # what is computed is the same
    assert stored.flops == pytest.approx(2 * 7 * 7 * 32 * 16 * 9, rel=0.02)


@pytest.mark.slow
def test_results_of_both_layouts():
    """Vectors for the one, elements for the other, which the model's output or a norm wants."""
    conv = Conv(20, 33, (9, 13))
    x = conv.image()

    def body(emit, x):
        y = dataclasses.replace(conv, block_out=0).body(emit, x)
        return [y, block(emit, y, 16)]

    claim = claimed(conv.params(), body)
    results = run(claim, {"x": to_blocks(x, conv.block_in)})
    plain, blocked = sorted(results, key=np.ndim)
    np.testing.assert_allclose(plain, conv.reference(x), atol=2e-5, rtol=0)
    np.testing.assert_array_equal(from_blocks(blocked)[:, : conv.k], plain)
    np.testing.assert_array_equal(from_blocks(blocked)[:, conv.k :], 0)


@pytest.mark.slow
@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize(("channels", "more"), [(40, 24), (32, 64), (16, 48)])
def test_a_concatenation_in_both_layouts(channels, more):
    """Its other channels are lanes beyond those of the sum, or whole tiles without one."""
    conv = Conv(16, channels, (9, 13))
    other = np.random.default_rng().standard_normal((1, more, 9, 13)).astype("float32")
    x = conv.image()

    def body(emit, x, other):
        y = emit(op.concat([dataclasses.replace(conv, block_out=0).body(emit, x), other], 1))
        return [y, block(emit, y, 16)]

    claim = claimed([*conv.params(), tensor("other", *other.shape)], body)
    results = run(claim, {"x": to_blocks(x, conv.block_in), "other": other})
    plain, blocked = sorted(results, key=np.ndim)
    np.testing.assert_allclose(plain[:, : conv.k], conv.reference(x), atol=2e-5, rtol=0)
    np.testing.assert_array_equal(plain[:, conv.k :], other)
    np.testing.assert_array_equal(from_blocks(blocked)[:, : conv.k + more], plain)
    np.testing.assert_array_equal(from_blocks(blocked)[:, conv.k + more :], 0)


@pytest.mark.slow
def test_a_concatenation_of_whole_blocks_is_stored_in_vectors():
    """Each vector chooses its operand once, and tiles without sums are no wider than others."""
    conv, shape = Conv(16, 80, (9, 13), block_out=0), (1, 64, 9, 13)
    other = np.random.default_rng().standard_normal(shape).astype("float32")
    x = conv.image()

    def body(emit, x, other):
        y = [conv.body(emit, x), unblock(emit, other, shape[1])]
        return block(emit, emit(op.concat(y, 1)), 16)

    spec = parse("cpu:x86-64-v4")
    params = [*conv.params(), tensor("other", *blocked_shape(shape, 16))]
    claim = claimed(params, body, spec)
    emission = CpuConvolution().emit(claim, spec.tvm_target())
    func = emission.kernels[0].func
    result = func.params[-1]
    config = claim.details.config
    loops, accumulators = [], []
    tvm_ffi.structural_walk(func.body, (tirx.For, loops.append))
    stores = [f for f in loops if isinstance(f.body, tirx.BufferStore)]
    kinds = {f.kind for f in stores if f.body.buffer.same_as(result)}
    assert kinds == {tirx.ForKind.VECTORIZED}
    tvm_ffi.structural_walk(
        func.body, (s_tir.SBlock, lambda b: accumulators.extend(b.alloc_buffers))
    )
    widths = {int(a.ty.shape[-1]) for a in accumulators if a.name == "acc"}
    assert max(widths) <= config.vectors * config.lanes
    claim = claimed(params, body)
    (y,) = run(claim, {"x": to_blocks(x, conv.block_in), "other": to_blocks(other, 16)})
    np.testing.assert_allclose(from_blocks(y)[:, : conv.k], conv.reference(x), atol=2e-5, rtol=0)
    np.testing.assert_array_equal(from_blocks(y)[:, conv.k :], other)


@pytest.mark.parametrize("size", [(6, 32), (7, 21), (5, 9)])
def test_plain_results_are_transposed_in_registers(size):
    """Whole vectors of channels become vectors of columns, the last of which overlap others."""
    conv, spec = Conv(16, 32, size, block_out=0), parse("cpu:x86-64-v4")
    claim = claimed(conv.params(), conv.body, spec)
    func = CpuConvolution().emit(claim, spec.tvm_target()).kernels[0].func
    shuffles, stores = [], []
    tvm_ffi.structural_walk(func.body, (tirx.Shuffle, shuffles.append))
    tvm_ffi.structural_walk(func.body, (tirx.BufferStore, stores.append))
    assert shuffles
    lanes = min(16, 1 << (size[1].bit_length() - 1))
    places = [s.indices[-1] for s in stores if s.buffer.same_as(func.params[-1])]
    assert places
    assert all(isinstance(p, tirx.Ramp) and int(p.lanes) == lanes for p in places)


def test_an_expensive_epilogue_of_plain_results_is_vectors():
    conv = Conv(16, 32, (7, 7), block_out=0)

    def body(emit, x):
        return op.sigmoid(conv.body(emit, x))

    x = conv.image()
    (y,) = run(claimed(conv.params(), body), {"x": to_blocks(x, conv.block_in)})
    np.testing.assert_allclose(y, 1 / (1 + np.exp(-conv.reference(x))), atol=2e-5, rtol=0)


def test_one_kernel_of_a_compiled_model():
    conv = Conv(16, 32, (7, 7), residual=True)
    mod = main_module(conv.params(), conv.body)
    planned = relax_pipeline(target=CPU.tvm_target(), lower=False)(mod)
    assert sum(isinstance(f, tirx.PrimFunc) for f in planned.functions.values()) == 1


INSTRUCTIONS = {  # what multiplies whole registers
    "cpu:x86-64": r"mulps\s+%xmm",
    "cpu:haswell": r"vfmadd231ps\s+.*%ymm",
    "cpu:skylake-avx512": r"vfmadd231ps\s+.*%zmm",
    "cpu:neoverse-n1": r"fmla\s+v\d+\.4s",
}
PREFETCH = r"\tprefetch|\tprfm"


@pytest.mark.parametrize("name", INSTRUCTIONS)
@pytest.mark.parametrize(
    ("window", "channels", "block"), [(1, 64, 16), (3, 64, 16), (3, 400, 16), (3, 64, 0)]
)
def test_conv_tiles_stay_in_registers(name, window, channels, block):
    """The innermost loop loads, multiplies, adds, prefetches far weights; it stores nothing."""
    spec = parse(name)
    padding = ((window - 1) // 2,) * 4
    conv = Conv(channels, 64, (28, 28), (window, window), padding=padding, block_in=block)
    claim = claimed(conv.params(), conv.body, spec)
    (made,) = CpuConvolution().emit(claim, spec.tvm_target()).kernels
    inner, count = inner_block(made.func, spec, INSTRUCTIONS[name])
    assert count >= 12
    assert not re.search(r"\tv?mov[au]ps\s+%\w+, .*\)|\tst[pr]\s|gather", inner)
    assert bool(re.search(PREFETCH, inner)) == (channels > 64)


@pytest.mark.parametrize("channels", [16, 512])
def test_a_weight_beyond_the_level_1_cache_streams_no_faster_than_it_is_used(channels):
    """4 x 4 vectors take 8 cycles for 256 bytes of the weight, 2 x 14 take 14 for half of them."""
    conv = Conv(channels, 512, (7, 7))
    config = claimed(conv.params(), conv.body, parse("cpu:znver4")).details.config
    pixels = config.height * config.width
    products = pixels * config.vectors / PER_CYCLE
    is_far = config.vectors * config.lanes * 4 * channels * 9 > L1_BYTES
    assert is_far == (channels == 512)
    assert (config.vectors * config.lanes * 4 <= STREAM * products) or not is_far


@pytest.mark.parametrize("groups", [1, 20])
def test_channels_last_of_no_whole_vectors(groups):
    """Results have no lanes beyond the channels: what is behind them stays as it was."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, 7, 6, 20)).astype("float32")
    w = (rng.standard_normal((20, 20 // groups, 3, 3)) / 10).astype("float32")

    def body(emit, x):
        return op.nn.conv2d(x, relax.const(w), padding=1, groups=groups, data_layout="NHWC")

    memory = tvm.runtime.tensor(np.full(7 * 6 * 20 + 64, np.nan, "float32"))
    y = memory._create_view((1, 7, 6, 20))
    run(claimed([tensor("x", *x.shape)], body), {"x": x}, results=[y])
    conv = Conv(20, 20, (7, 6), groups=groups)
    expected = convolve(x.transpose(0, 3, 1, 2).astype("float64"), w, conv)
    np.testing.assert_allclose(y.numpy().transpose(0, 3, 1, 2), expected, atol=2e-5)
    assert np.isnan(memory.numpy()[7 * 6 * 20 :]).all()


def test_three_dimensions():
    """Planes of the window are among the lines that a task copies."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, 5, 6, 7, 20)).astype("float32")
    w = (rng.standard_normal((2, 3, 3, 20, 32)) / 20).astype("float32")

    def body(emit, x):
        layouts = {"data_layout": "NDHWC", "kernel_layout": "DHWIO"}
        return op.nn.conv3d(x, relax.const(w), padding=(0, 1, 1, 1, 1, 1), **layouts)

    (y,) = run(claimed([tensor("x", *x.shape)], body), {"x": x})
    padded = np.pad(x.astype("float64"), ((0, 0), (0, 1), (1, 1), (1, 1), (0, 0)))
    expected = sum(
        padded[:, d : d + 5, r : r + 6, s : s + 7] @ w[d, r, s].astype("float64")
        for d in range(2)
        for r in range(3)
        for s in range(3)
    )
    np.testing.assert_allclose(y, expected, atol=2e-5)


def test_one_dimension():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 33, 20)).astype("float32")
    w = (rng.standard_normal((5, 20, 48)) / 10).astype("float32")

    def body(emit, x):
        layouts = {"data_layout": "NWC", "kernel_layout": "WIO"}
        return op.nn.conv1d(x, relax.const(w), 2, (1, 2), **layouts)

    (y,) = run(claimed([tensor("x", *x.shape)], body), {"x": x})
    padded = np.pad(x.astype("float64"), ((0, 0), (1, 2), (0, 0)))
    expected = sum(padded[:, s : s + 31 + 1 : 2] @ w[s].astype("float64") for s in range(5))
    np.testing.assert_allclose(y, expected, atol=2e-5)
