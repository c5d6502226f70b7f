"""Images on GPUs: channels last between convolutions that tensor cores multiply."""

import numpy as np
import pytest
from relax_modules import main_module
from tvm import relax, tirx

from tvm_fusion.core.decisions import recording
from tvm_fusion.device import parse
from tvm_fusion.layout import network as costs
from tvm_fusion.layout.plan_layout import choose_layouts
from tvm_fusion.program.layouts import Layout, layout_for
from tvm_fusion.transform import FuseOperators, Legalize

pytestmark = pytest.mark.slow_beyond(2)

op = relax.op
CUDA, OLD, AMD = parse("cuda:sm_90a"), parse("cuda:sm_75"), parse("rocm:gfx90a")
CHANNELS, SIZE = 64, 28


def weight(*shape):
    rng = np.random.default_rng(0)
    return relax.const((rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype("float16"))


def convolution(emit, x):
    y = emit(op.nn.conv2d(x, weight(CHANNELS, CHANNELS, 3, 3), padding=1, out_dtype="float32"))
    return emit(op.astype(emit(op.nn.relu(y)), "float16"))


def network(emit, x):
    a = convolution(emit, x)
    c = emit(op.add(a, convolution(emit, convolution(emit, a))))
    return convolution(emit, c)


def planned(spec, body, batch=1, rows=SIZE):
    x = relax.Var("x", relax.TensorType((batch, CHANNELS, rows, SIZE), "float16"))
    with spec.tvm_target():
        mod = FuseOperators()(Legalize()(main_module([x], body)))
        with recording() as decisions:
            return choose_layouts(mod, spec.tvm_target()), decisions


def shapes(mod):
    bindings = [b for block in mod["main"].body.blocks for b in block.bindings]
    return [tuple(map(int, b.var.ty.shape.values)) for b in bindings]


def enlarged(emit, x):
    a = convolution(emit, x)
    size = relax.ShapeExpr([2 * SIZE, 2 * SIZE])
    return convolution(emit, emit(op.image.resize2d(a, size, method="nearest_neighbor")))


@pytest.mark.slow
def test_images_between_convolutions_and_a_resize_are_channels_last():
    """Lanes that read channels of a channels-first image have a cache line each."""
    mod, _ = planned(CUDA, enlarged)
    *between, last = [s for s in shapes(mod) if len(s) == 4]
    assert {s[1:] for s in between} == {(SIZE, SIZE, CHANNELS), (2 * SIZE, 2 * SIZE, CHANNELS)}
    assert last == (1, CHANNELS, 2 * SIZE, 2 * SIZE)


def test_images_between_convolutions_are_channels_last():
    mod, decisions = planned(CUDA, network)
    *between, last = [s for s in shapes(mod) if len(s) == 4]
    assert set(between) == {(1, SIZE, SIZE, CHANNELS)}
    assert last == (1, CHANNELS, SIZE, SIZE)
    (copied,) = [d for d in decisions if d.code == "layout_kernel"]
    assert "it comes from outside the groups" in copied.sentence


def test_results_of_any_height_are_channels_last_first():
    """Tiles whose columns are pixels of the graph's layout are of known images."""
    mod, decisions = planned(CUDA, network, rows=tirx.Var("h", "int64"))
    bindings = [b for block in mod["main"].body.blocks for b in block.bindings]
    *between, last = [list(b.var.ty.shape) for b in bindings if b.var.ty.ndim == 4]
    assert all(shape[-1] == CHANNELS for shape in between)
    assert last[1] == CHANNELS
    first, second = [d.sentence for d in decisions if d.code == "layout_kernel"]
    assert "it comes from outside the groups" in first
    assert "from NHWC to the layout of the graph: something other" in second


def pointwise(emit, x, outputs):
    w = weight(outputs, int(x.ty.shape[1]), 1, 1)
    return emit(op.astype(emit(op.nn.conv2d(x, w, out_dtype="float32")), "float16"))


def shortcuts(emit, x):
    """Bound by memory: claims say the same of both layouts."""
    x = pointwise(emit, x, 4 * CHANNELS)
    for _ in range(2):
        y = emit(op.nn.relu(pointwise(emit, x, CHANNELS)))
        x = emit(op.nn.relu(emit(op.add(x, pointwise(emit, convolution(emit, y), 4 * CHANNELS)))))
    return pointwise(emit, x, CHANNELS)


def normalized(emit, x):
    groups, ones = 32, relax.const(np.ones(4 * CHANNELS, "float16"))
    y = pointwise(emit, x, 4 * CHANNELS)
    y = emit(op.nn.group_norm(y, ones, ones, groups, 1, [2, 3], 1e-5))
    return convolution(emit, pointwise(emit, y, CHANNELS))


@pytest.mark.slow
def test_shortcuts_are_channels_last():
    mod, _ = planned(CUDA, shortcuts, batch=8)
    wide = [s for s in shapes(mod) if 4 * CHANNELS in s]
    assert wide == [(8, SIZE, SIZE, 4 * CHANNELS)] * 3


@pytest.mark.slow
def test_nothing_is_preferred_beside_norms(monkeypatch):
    found = shapes(planned(CUDA, normalized)[0])
    monkeypatch.setattr(costs, "PREFERENCE", 0.0)
    assert shapes(planned(CUDA, normalized)[0]) == found


@pytest.mark.parametrize(
    ("spec", "channels", "expected"),
    [
        (CUDA, 64, Layout(0)),
        (CUDA, 3, None),
        (CUDA, 36, None),
        (OLD, 64, Layout(0)),
        (AMD, 64, None),
    ],
)
def test_copies_of_16_bytes_need_channels_and_tensor_cores(spec, channels, expected):
    x = relax.TensorType((1, channels, 9, 9), "float16")
    assert layout_for(list(x.shape.values), spec.device) == expected
