"""Winograd convolutions read the parts of a concatenation of channels, and norms of it."""

import numpy as np
import pytest
from group_kernels import CPU, group, tensor
from relax_modules import main_module
from rounding import assert_sums_close
from tvm import relax

import tvm_fusion
from tests.schedule.convolution.conv_cases import (
    Conv,
    block,
    blocked_shape,
    claimed,
    convolve,
    from_blocks,
    run,
    to_blocks,
    unblock,
)
from tests.schedule.convolution.winograd.winograd_cases import DEFAULT, as_winograd, magnitude
from tvm_fusion.core.contract.template import Refusal
from tvm_fusion.core.flags import APPROXIMATE
from tvm_fusion.schedule.convolution.template import CpuConvolution

pytestmark = pytest.mark.slow_beyond(1)

op = relax.op
# Channels of the parts, and of the result; extents; padding; m; blocks of channels; a norm of all.
CASES = {
    "less than a vector": ((16, 3), 20, (5, 7), (1, 1, 1, 1), 2, 0, True),
    "three parts, the last odd": ((16, 32, 21), 41, (13, 9), (1, 1, 1, 1), 4, 16, True),
    "vectors": ((32, 16), 32, (9, 7), (1, 1, 1, 1), 4, 0, False),
    "padded on two sides": ((16, 20), 16, (9, 10), (0, 1, 1, 0), 2, 16, True),
    "no padding": ((48, 7), 19, (7, 5), (0, 0, 0, 0), 4, 16, False),
}


def norm(channels, axes):
    """Scales and shifts of channels: powers of two, so that products are exact, fused or not."""
    rng = np.random.default_rng(4)
    scale = 2.0 ** rng.integers(-1, 2, channels) * rng.choice([-1, 1], channels)
    return [a.astype("float32").reshape(axes) for a in (scale, rng.standard_normal(channels))]


def joined(conv, parts, lanes, has_norm):
    """Write a convolution of a concatenation, with a map of its second part and a norm of all."""
    data_layout, axis, axes = ("NCHW", 1, (1, -1, 1, 1)) if lanes else ("NHWC", 3, (1, 1, 1, -1))

    def body(emit, *xs):
        if lanes:
            xs = [unblock(emit, x, c) for x, c in zip(xs, parts, strict=True)]
        first, second, *rest = xs
        image = emit(op.concat([first, emit(op.nn.relu(second)), *rest], axis=axis))
        if has_norm:
            scale, shift = (relax.const(a) for a in norm(conv.c, axes))
            image = emit(op.nn.relu(emit(op.add(emit(op.multiply(image, scale)), shift))))
        weight = relax.const(conv.weights()[0])
        y = op.nn.conv2d(image, weight, padding=conv.padding, data_layout=data_layout)
        return block(emit, emit(y), lanes) if lanes else y

    return body


def params(parts, extents, lanes):
    plain = [(2, c, *extents) for c in parts]
    shapes = [blocked_shape(s, lanes) if lanes else (2, *extents, s[1]) for s in plain]
    return [tensor(f"x{n}", *shape) for n, shape in enumerate(shapes)]


@pytest.mark.parametrize("case", CASES.values(), ids=[*CASES])
def test_within_the_bound_of_float64(case):
    parts, k, extents, padding, m, lanes, has_norm = case
    conv = Conv(sum(parts), k, extents, padding=padding, batch=2)
    claim = claimed(params(parts, extents, lanes), joined(conv, parts, lanes, has_norm))
    assert [end for end, _ in claim.details.problem.image.parts] == list(np.cumsum(parts))
    rng = np.random.default_rng()
    xs = [rng.standard_normal((2, c, *extents), np.float32) for c in parts]
    given = [
        to_blocks(x, lanes) if lanes else np.ascontiguousarray(x.transpose(0, 2, 3, 1)) for x in xs
    ]
    (y,) = run(as_winograd(claim, m), {f"x{n}": x for n, x in enumerate(given)})
    y = from_blocks(y)[:, :k] if lanes else y.transpose(0, 3, 1, 2)
    image = np.concatenate([xs[0], np.maximum(xs[1], 0), *xs[2:]], 1)
    if has_norm:
        scale, shift = norm(conv.c, (1, -1, 1, 1))
        image = np.maximum(image * scale + shift, 0)
    weight = conv.weights()[0]
    exact = convolve(image.astype("float64"), weight.astype("float64"), conv)
    size, roundings = magnitude(m, image, weight, padding)
    assert_sums_close(y, exact, size, roundings)


@pytest.mark.parametrize("lanes", [0, 16])
def test_parts_that_end_within_a_block_are_refused(lanes):
    parts, extents = (20, 28), (9, 7)
    conv = Conv(48, 32, extents, batch=2)
    made = group(params(parts, extents, lanes), joined(conv, parts, lanes, False), CPU)
    refusal = CpuConvolution().claim(made, CPU.device)
    assert isinstance(refusal, Refusal)
    assert refusal.code == "joined_image"
    assert "end at channels 20, within a block of 16" in refusal.sentence


@pytest.mark.slow
@pytest.mark.parametrize("parts", [(32, 32), (20, 44)])
def test_compiled_with_permission(parts, tmp_path):
    """Whether or not parts are of whole blocks, which then are concatenated before."""
    conv = Conv(64, 64, (28, 28))
    weights = [conv.weights(n)[0] for n in range(2)]
    scale, shift = norm(64, (1, -1, 1, 1))

    def body(emit, *xs):
        image = emit(op.concat([*xs], axis=1))
        image = emit(op.add(emit(op.multiply(image, relax.const(scale))), relax.const(shift)))
        y = emit(op.nn.conv2d(emit(op.nn.relu(image)), relax.const(weights[0]), padding=1))
        return emit(op.nn.conv2d(y, relax.const(weights[1]), padding=1))

    mod = main_module([tensor(f"x{n}", 1, c, 28, 28) for n, c in enumerate(parts)], body)
    config = tvm_fusion.FusionConfig(allow=(APPROXIMATE,))
    explained = tvm_fusion.explain(mod, DEFAULT.text, config)
    assert any("Winograd" in g.arithmetic for g in explained.groups)
    rng = np.random.default_rng(0)
    xs = [rng.standard_normal((1, c, 28, 28), np.float32) for c in parts]
    tvm_fusion.compile(mod, "cpu", config).export(tmp_path / "joined")
    named = {f"x{n}": x for n, x in enumerate(xs)}
    (found,) = tvm_fusion.load(tmp_path / "joined").run(named).values()
    y = np.maximum(np.concatenate(xs, 1) * scale + shift, 0).astype("float64")
    for weight in weights:
        y = convolve(y, weight.astype("float64"), conv)
    np.testing.assert_allclose(np.from_dlpack(found), y, rtol=1e-4, atol=1e-3)
