"""Convolutions of concatenations of channels copy each part to where the tiles read it."""

import numpy as np
import pytest
from group_kernels import close, tensor
from relax_modules import main_module
from tvm import relax

from tests.schedule.convolution.conv_cases import Conv, claimed, convolve, run
from tvm_fusion.device import parse
from tvm_fusion.fusion.estimate import Estimator

op = relax.op
CASES = {  # channels of the parts, and of the result; extents; window
    "vectors": ((32, 32), 32, (8, 8), 3),
    "uneven": ((33, 5, 7), 20, (13, 9), 3),
    "pixels": ((16, 24), 32, (6, 10), 1),
}


def joined(weight, window):
    """Write a convolution of a concatenation, with a map of its second part."""

    def body(emit, *xs):
        first, second, *rest = xs
        parts = [first, emit(op.nn.relu(second)), *rest]
        image = emit(op.concat(parts, axis=1))
        return op.nn.conv2d(image, relax.const(weight), padding=window // 2)

    return body


@pytest.mark.parametrize("case", CASES.values(), ids=[*CASES])
def test_parts_are_read_in_turn(case):
    parts, channels, extents, window = case
    conv = Conv(
        sum(parts), channels, extents, (window, window), padding=(window // 2,) * 4, batch=2
    )
    weight = conv.weights()[0]
    params = [tensor(f"x{n}", 2, c, *extents) for n, c in enumerate(parts)]
    claim = claimed(params, joined(weight, window))
    rng = np.random.default_rng()
    given = {
        p.name: rng.standard_normal((2, c, *extents)).astype("float32")
        for p, c in zip(params, parts, strict=True)
    }
    image = [np.maximum(x, 0) if n == 1 else x for n, x in enumerate(given.values())]
    close(run(claim, given), [convolve(np.concatenate(image, 1), weight, conv)], 1e-4)


def test_norms_of_the_concatenation_are_read_in_parts():
    conv = Conv(24, 16, (6, 9), (1, 1), padding=(0,) * 4)
    weight, rng = conv.weights()[0], np.random.default_rng()
    scale = rng.standard_normal((1, 24, 1, 1)).astype("float32")

    def body(emit, x, y):
        image = emit(op.multiply(emit(op.concat([x, y], axis=1)), relax.const(scale)))
        return op.nn.conv2d(emit(op.nn.relu(image)), relax.const(weight))

    given = {n: rng.standard_normal((1, 12, 6, 9)).astype("float32") for n in "xy"}
    claim = claimed([tensor(n, 1, 12, 6, 9) for n in "xy"], body)
    image = np.maximum(np.concatenate([*given.values()], 1) * scale, 0)
    close(run(claim, given), [convolve(image, weight, conv)], 1e-4)


def test_is_one_kernel():
    target = parse("cpu:x86-64-v3").tvm_target()
    weight = Conv(64, 32, (28, 28)).weights()[0]
    params = [tensor(f"x{n}", 1, 32, 28, 28) for n in range(2)]
    with target:
        assert Estimator(target).module(main_module(params, joined(weight, 3))).kernels == 1


def test_arithmetic_of_many_parts_is_priced_once():
    conv = Conv(256, 32, (14, 14), (1, 1), padding=(0,) * 4)
    weight, scale = conv.weights()[0], np.full((1, 256, 1, 1), 2, "float32")

    def of(count):
        def body(emit, *xs):
            image = emit(op.concat(xs, axis=1)) if count > 1 else xs[0]
            image = emit(op.nn.relu(emit(op.multiply(image, relax.const(scale)))))
            return op.nn.conv2d(image, relax.const(weight))

        params = [tensor(f"x{n}", 1, 256 // count, 14, 14) for n in range(count)]
        return claimed(params, body).flops_to_price

    assert 0 < of(8) <= 2 * of(2)
    assert of(2) <= 2 * of(8)
