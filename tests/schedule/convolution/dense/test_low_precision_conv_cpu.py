"""Direct convolutions of half types and of bytes on CPUs: results, instructions, tiles."""

import dataclasses
import re

import ml_dtypes  # noqa: F401  numpy's bfloat16
import numpy as np
import pytest
from assembly import inner_block
from hypothesis import given, settings
from hypothesis import strategies as st
from relax_modules import main_module
from tvm import relax, tirx

from tests.schedule.convolution.conv_cases import Conv, check, claimed, other_tiles
from tvm_fusion.device import parse
from tvm_fusion.pipeline import relax_pipeline
from tvm_fusion.schedule.convolution.dense.config import ConvConfig
from tvm_fusion.schedule.convolution.depthwise.cpu_config import DepthwiseConfig
from tvm_fusion.schedule.convolution.template import CpuConvolution

pytestmark = pytest.mark.slow_beyond(2)

op = relax.op
NONE = (0, 0, 0, 0)
SEVEN = (3, 3, 3, 3)

CASES = {
    "1x1": Conv(32, 48, (7, 7), (1, 1), padding=NONE),
    "odd channels, batch": Conv(20, 33, (13, 5), batch=2),
    "channels that end within a word": Conv(17, 33, (7, 6), stride=(2, 2), padding=(0, 1, 2, 1)),
    "1x1, channels that end within a word": Conv(19, 16, (5, 6), (1, 1), padding=NONE),
    "dilated": Conv(16, 20, (9, 11), dilation=(2, 2), padding=(2, 2, 2, 2)),
    "groups": Conv(32, 32, (7, 9), groups=8),
    "groups within blocks": Conv(40, 136, (7, 9), (1, 1), padding=NONE, groups=2),
    "plain image of few channels": Conv(3, 40, (17, 18), (7, 7), (2, 2), SEVEN, block_in=0),
    "plain throughout": Conv(10, 24, (7, 13), block_in=0, block_out=0),
}


@pytest.mark.parametrize("case", CASES)
def test_bytes_are_exact(case):
    """Whatever the CPU; words of four channels where it multiplies them."""
    claim = check(dataclasses.replace(CASES[case], dtype="uint8"))
    assert isinstance(claim.details.config, ConvConfig)
    if parse("cpu").device.vnni_bits is not None and claim.details.tiles is None:
        assert claim.details.problem.words.dot.group == 4


@pytest.mark.parametrize("case", ["odd channels, batch", "dilated", "plain image of few channels"])
def test_padding_with_a_zero_point(case):
    check(dataclasses.replace(CASES[case], dtype="uint8", zero=131))


@pytest.mark.parametrize("case", ["odd channels, batch", "1x1", "plain image of few channels"])
def test_pairs_of_int16(case):
    """Differences of bytes; pmaddwd multiplies pairs of them."""
    spec = parse("cpu")
    words = check(dataclasses.replace(CASES[case], dtype="int16")).details.problem.words
    assert words is not None or not {"avx2", "avx512bw"} & set(spec.device.features)


@pytest.mark.parametrize("case", list(CASES)[::2])
def test_bfloat16(case):
    claim = check(dataclasses.replace(CASES[case], dtype="bfloat16"))
    has_words = claim.details.problem.words is not None
    assert has_words == (parse("cpu").device.dpbf16_bits is not None)


@pytest.mark.parametrize("case", list(CASES)[1::3])
def test_float16(case):
    claim = check(dataclasses.replace(CASES[case], dtype="float16"))
    assert isinstance(claim.details.config, ConvConfig)


@pytest.mark.parametrize("dtype", ["uint8", "float16", "bfloat16"])
def test_depthwise(dtype):
    claim = check(Conv(36, 36, (9, 7), groups=36, dtype=dtype))
    assert isinstance(claim.details.config, DepthwiseConfig)


def test_a_depthwise_kernel_leaves_zeros_out_only():
    """Taps in the padding are left out, so that padding with a zero point is not for it."""
    conv = Conv(32, 32, (9, 7), groups=32, dtype="uint8", zero=3)
    with pytest.raises(AssertionError, match="not contiguous"):
        claimed(conv.params(), conv.body)


@pytest.mark.parametrize("channels", [6, 5])
def test_groups_whose_channels_are_no_words(channels):
    """Pairs of int16 where there are pairs; one by one otherwise."""
    conv = Conv(4 * channels, 64, (7, 6), groups=4, dtype="uint8")
    details = check(conv).details
    words = details.problem.words
    if parse("cpu").device.vnni_bits is not None and details.tiles is None:
        assert (words.dot.group if words else 1) == 2 - channels % 2


@pytest.mark.slow
def test_without_the_instructions():
    """AVX2 multiplies pairs of int16, and float32, in blocks of eight."""
    spec = parse("cpu:haswell")
    for dtype, group in (("uint8", 2), ("float16", 1), ("bfloat16", 1)):
        conv = Conv(19, 28, (9, 5), block_in=8, block_out=8, dtype=dtype)
        words = check(conv, spec).details.problem.words
        assert (words.dot.group if words else 1) == group


@pytest.mark.slow
@settings(max_examples=6)
@given(
    st.sampled_from(["uint8", "bfloat16"]),
    st.tuples(st.integers(2, 37), st.integers(9, 40)),
    st.tuples(st.integers(6, 13), st.integers(6, 13)),
    st.sampled_from([0, 255, 7]),
    st.tuples(*[st.integers(0, 2)] * 4),
    st.sampled_from([0, 16]),
)
def test_drawn_problems(dtype, channels, size, zero, padding, block_in):
    zero = zero if dtype == "uint8" and any(padding) else 0
    check(Conv(*channels, size, padding=padding, block_in=block_in, dtype=dtype, zero=zero))


@pytest.mark.slow
def test_every_tile_is_right():
    conv = Conv(22, 70, (9, 11), dtype="uint8", zero=5)
    for claim in other_tiles(conv):
        check(conv, claim=claim)


INSTRUCTIONS = {
    ("cpu:cascadelake", "uint8"): r"vpdpbusd\s+.*%zmm",
    ("cpu:znver5", "uint8"): r"vpdpbusd\s+.*%zmm",
    ("cpu:alderlake", "uint8"): r"vpdpbusd\s+.*%ymm",
    ("cpu:haswell", "uint8"): r"vpmaddwd\s+.*%ymm",
    ("cpu:znver4", "bfloat16"): r"vdpbf16ps\s+.*%zmm",
    ("cpu:znver5", "bfloat16"): r"vdpbf16ps\s+.*%zmm",
}


@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize(("name", "dtype"), INSTRUCTIONS)
def test_instructions(name, dtype, window):
    """The innermost loop calls nothing, reads a word by at most one broadcast, and does not spill.

    Of sixteen registers a few products may: LLVM adds up pairs in an order of its own.
    """
    spec = parse(name)
    lanes = spec.device.fixed_vector_bits // 32
    padding = (window // 2,) * 4
    conv = Conv(64, 64, (28, 28), (window, window), (1, 1), padding, dtype=dtype)
    conv = dataclasses.replace(conv, block_in=lanes, block_out=lanes)
    claim = claimed(conv.params(), conv.body, spec)
    (made,) = CpuConvolution().emit(claim, spec.tvm_target()).kernels
    inner, count = inner_block(made.func, spec, INSTRUCTIONS[name, dtype])
    config = claim.details.config
    assert count >= 8
    assert not re.search(r"\tcall|vpinsr|vpunpck", inner)
    spills = len(re.findall(r"\tvmov\w+\s+%[xyz]mm\w+, .*\)", inner))
    assert spills <= (count // 10 if lanes == 8 else 0)
    broadcasts = len(re.findall(r"v(?:pbroadcastd|broadcastss)\s+[^%]*\(", inner))
    assert 0 < broadcasts * config.vectors <= count


@pytest.mark.parametrize("cpu", ["cpu:x86-64-v3", "cpu:x86-64-v4"])
def test_a_network_of_half_types_has_no_padded_copies(cpu):
    """Two convolutions are two kernels; their images are blocked between them."""
    weights = [
        np.random.default_rng(n).standard_normal(shape).astype("float16")
        for n, shape in enumerate(((32, 3, 3, 3), (64, 32, 3, 3)))
    ]

    def body(emit, x):
        for w in weights:
            x = emit(op.nn.relu(emit(op.nn.conv2d(x, relax.const(w), padding=(1, 1)))))
        return x

    x = relax.Var("x", relax.TensorType((1, 3, 20, 20), "float16"))
    with parse(cpu).tvm_target() as target:
        mod = relax_pipeline(target=target)(main_module([x], body))
    kernels = [f for f in mod.functions.values() if isinstance(f, tirx.PrimFunc)]
    packed = [len(x.ty.shape) for f in kernels for x in f.params if "packed" in x.name]
    assert len(kernels) == 2
    assert packed == [6, 6]  # tile, block, window, channel, lane: of direct kernels
