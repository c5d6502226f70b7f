"""Networks of convolutions have no layout kernels; on GPUs they are channels-last throughout."""

import numpy as np
import pytest
from relax_modules import main_module
from tvm import relax

from tvm_fusion import transform
from tvm_fusion.core.contract.template import TEMPLATE
from tvm_fusion.core.decisions import recording
from tvm_fusion.device import parse

op = relax.op


def conv(emit, x, outputs, size, groups=1, activate=op.nn.relu):
    inputs, dtype = int(x.ty.shape[1]), str(x.ty.dtype)
    w = relax.const(np.full((outputs, inputs // groups, size, size), outputs, dtype))
    padding = (size // 2,) * 2
    y = emit(op.nn.conv2d(x, w, padding=padding, groups=groups, out_dtype="float32"))
    return emit(op.astype(emit(activate(y)), dtype))


def inverted_residuals(emit, x):
    """As MobileNetV2's: expansion, depthwise, projection, a shortcut; the mean at the end."""
    x = conv(emit, x, 32, 3)
    for _ in range(2):
        y = conv(emit, conv(emit, x, 192, 1), 192, 3, groups=192)
        x = emit(op.add(x, conv(emit, y, 32, 1)))
    return emit(op.mean(x, [2, 3]))


def residual(emit, x):
    """As ResNet's: 3x3 convolutions, a shortcut, max pooling."""
    x = conv(emit, x, 64, 3)
    y = conv(emit, conv(emit, x, 64, 3), 64, 3)
    x = emit(op.add(x, y))
    x = emit(op.nn.max_pool2d(x, (3, 3), (2, 2), (1, 1)))
    return emit(op.mean(conv(emit, x, 64, 3), [2, 3]))


def normalized(emit, x):
    """Norm of 32 groups, then SiLU."""
    dtype = str(x.ty.dtype)
    ones, zeros = (relax.const(f(int(x.ty.shape[1]), dtype)) for f in (np.ones, np.zeros))
    y = emit(op.nn.group_norm(x, ones, zeros, 32, 1, [2, 3]))
    return emit(op.nn.silu(y))


def level_of_a_unet(emit, x, channels):
    """As Stable Diffusion's: norms before convolutions, shortcuts, one over a concatenation."""
    first = x = conv(emit, x, channels, 3)
    for _ in range(2):
        y = conv(emit, normalized(emit, x), channels, 3, activate=op.negative)
        x = emit(op.add(x, conv(emit, normalized(emit, y), channels, 3, activate=op.negative)))
    x = emit(op.concat([x, first], 1))
    return conv(emit, normalized(emit, x), 8, 3, activate=op.negative)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "size", "channels"),
    [
        ("cuda:sm_90a", 256, 128),  # 4 channels a group, as in the last level of a decoder
        ("cuda:sm_90a", 64, 320),
        ("cuda:sm_90a", 8, 640),  # few pixels: norms in one launch
        ("cpu:x86-64-v3", 32, 64),
    ],
)
def test_no_kernel_copies_around_group_norms(target, size, channels):
    """All levels of the UNets and decoders of diffusion."""
    dtype = "float16" if target.startswith("cuda") else "float32"
    image = relax.Var("image", relax.TensorType((1, 4, size, size), dtype))
    mod = main_module([image], lambda emit, x: level_of_a_unet(emit, x, channels))
    with parse(target).tvm_target(), recording() as decisions:
        transform.PlanLayout()(transform.FuseOperators()(transform.Legalize()(mod)))
    names = {d.sentence for d in decisions if d.code == "layout"}
    assert names == ({"In memory in NHWC."} if target.startswith("cuda") else names)
    # The result's few channels may be copied, where that is cheaper than stores by elements.
    copied = [d.sentence for d in decisions if d.code == "layout_kernel" and d.producer != "gv"]
    assert not copied


@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize("body", [inverted_residuals, residual])
def test_no_kernel_copies_and_windows_read_channels_last(body):
    image = relax.Var("image", relax.TensorType((1, 3, 56, 56), "float16"))
    mod = main_module([image], body)
    with parse("cuda:sm_90a").tvm_target(), recording() as decisions:
        mod = transform.PlanLayout()(transform.FuseOperators()(transform.Legalize()(mod)))
    assert not [d for d in decisions if d.code == "layout_kernel"]
    edges = [d for d in decisions if d.code == "layout"]
    assert edges
    assert {d.sentence for d in edges} == {"In memory in NHWC."}
    calls = [
        mod[b.value.op]
        for b in mod["main"].body.blocks[0].bindings
        if isinstance(b.value, relax.Call) and b.value.op in mod.functions
    ]
    templates = [str(f.attrs[TEMPLATE]) for f in calls]
    assert templates.count("depthwise") == (2 if body is inverted_residuals else 0)
