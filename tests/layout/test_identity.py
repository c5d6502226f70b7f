"""Transposes between a graph's channels-last images and convolutions are no kernels on GPUs."""

import numpy as np
import pytest
from group_kernels import group, tensor
from relax_modules import main_module
from tvm import relax

from tvm_fusion.device import parse
from tvm_fusion.layout.identity import is_identity
from tvm_fusion.layout.plan_layout import choose_layouts
from tvm_fusion.program.layouts import Layout
from tvm_fusion.program.variant import variant
from tvm_fusion.transform import FuseOperators, Legalize

op = relax.op
CUDA = parse("cuda:sm_90a")
NHWC, NCHW = (0, 2, 3, 1), (0, 3, 1, 2)
CHANNELS_LAST = Layout(0)


def convolution(emit, x, outputs, groups=1, size=3):
    inputs = int(x.ty.shape[1])
    w = relax.const(np.full((outputs, inputs // groups, size, size), 0.1, "float16"))
    y = emit(op.nn.conv2d(x, w, padding=size // 2, groups=groups, out_dtype="float32"))
    return emit(op.astype(emit(op.nn.relu(y)), "float16"))


def layers(number, channels, groups=1, size=3):
    """Convolutions of a channels-last image, between two transposes."""

    def body(emit, x):
        x = emit(op.permute_dims(x, NCHW))
        for _ in range(number):
            x = convolution(emit, x, channels, groups, size)
        return emit(op.permute_dims(x, NHWC))

    return body


@pytest.mark.slow_beyond(3)
@pytest.mark.parametrize(
    ("shape", "number", "groups", "size"),
    [
        ((1, 56, 56, 96), 1, 96, 7),
        ((2, 16, 16, 1280), 1, 1, 3),
        ((1, 28, 28, 64), 3, 1, 3),
        ((1, 56, 56, 96), 2, 96, 5),
    ],
)
def test_convolutions_between_transposes_are_all_there_is(shape, number, groups, size):
    x = tensor("x", *shape, dtype="float16")
    with CUDA.tvm_target():
        mod = Legalize()(main_module([x], layers(number, shape[-1], groups, size)))
        mod = choose_layouts(FuseOperators()(mod), CUDA.tvm_target())
    bindings = [b for block in mod["main"].body.blocks for b in block.bindings]
    calls = [b for b in bindings if isinstance(b.value, relax.Call)]
    assert len(calls) == number
    assert {tuple(map(int, b.var.ty.shape)) for b in calls} == {shape}


def moved(axes, layouts, shape=(2, 6, 7, 24), dtype="float16"):
    """Whether a transpose under layouts of its operand and result is the identity."""
    x = tensor("x", *shape, dtype=dtype)
    members = group([x], lambda emit, x: emit(op.permute_dims(x, axes)), CUDA)
    images = [*members.inputs, *members.outputs]
    chosen = {v: CHANNELS_LAST for v, has in zip(images, layouts, strict=True) if has}
    return is_identity(variant(members, chosen).group)


def test_what_copies_a_tensor_onto_itself_is_told():
    assert moved(NCHW, (False, True))
    assert moved(NHWC, (True, False))
    assert not moved(NCHW, (False, False))
    assert not moved(NCHW, (True, True))
    assert not moved((0, 3, 2, 1), (False, True))
    assert not moved((0, 3, 2, 1), (False, True), (2, 6, 6, 24))  # of the same shape


def test_other_maps_are_no_identity():
    x, y = (tensor(name, 2, 24, 6, 7) for name in "xy")
    assert not is_identity(group([x], lambda emit, x: emit(op.negative(x))))
    assert not is_identity(group([x], lambda emit, x: emit(op.astype(x, "float16"))))
    assert not is_identity(group([x, y], lambda emit, x, y: emit(op.add(x, y))))
    assert not is_identity(group([x], lambda emit, x: emit(op.max(x, 1, keepdims=True))))
