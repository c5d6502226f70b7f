"""Whole layers of known networks, at reduced sizes, through ``load`` on an interpreted AMD GPU."""

import numpy as np
import pytest
from rocm_models import ARCHS, Models, agree, draw, load, wanted

from tvm_fusion.deploy.runtime.tensors import to_numpy
from tvm_fusion.deploy.toolchain import rocm

pytestmark = [
    pytest.mark.rocm_toolchain,
    pytest.mark.skipif(rocm.find_lld() is None, reason="no lld 19 or newer was found"),
]


def rms_norm(m, x, width):
    mean = m.emit("ReduceMean", m.emit("Mul", x, x), m.constant([-1]), keepdims=1)
    root = m.emit("Sqrt", m.emit("Add", mean, m.constant(1e-5, "float32")))
    return m.emit("Mul", m.emit("Div", x, root), m.weight(width, scale=1.0))


def swiglu(m, x, width, hidden):
    gate, up = (m.emit("MatMul", x, m.weight(width, hidden)) for _ in range(2))
    gate = m.emit("Mul", gate, m.emit("Sigmoid", gate))
    return m.emit("MatMul", m.emit("Mul", gate, up), m.weight(hidden, width))


def llama_layer(rows, past=0, width=64, heads=4, kv_heads=2):
    """Rotary embedding, grouped queries, a causal mask, SwiGLU; keys and values of before."""
    m, each = Models(), width // heads
    angles = np.arange(past, past + rows)[:, None] / 100 ** (np.arange(each // 2) / (each // 2))
    cos, sin = (m.constant(np.tile(f(angles), 2)[None, None], "float32") for f in (np.cos, np.sin))

    def split(x, count):
        x = m.emit("Reshape", x, m.constant([1, rows, count, each]))
        return m.emit("Transpose", x, perm=[0, 2, 1, 3])

    def half(x, first):
        ends = (m.constant([first + i * each // 2]) for i in range(2))
        return m.emit("Slice", x, *ends, m.constant([3]))

    def rotated(x):
        turned = m.emit("Concat", m.emit("Neg", half(x, each // 2)), half(x, 0), axis=3)
        return m.emit("Add", m.emit("Mul", x, cos), m.emit("Mul", turned, sin))

    def shared(x, kind):
        if past:
            x = m.emit("Concat", kind, x, axis=2)
        keys = past + rows
        x = m.emit(
            "Expand",
            m.emit("Unsqueeze", x, m.constant([2])),
            m.constant([1, kv_heads, heads // kv_heads, keys, each]),
        )
        return m.emit("Reshape", x, m.constant([1, heads, keys, each]))

    x = rms_norm(m, "x", width)
    q, k, v = (
        split(m.emit("MatMul", x, m.weight(width, n * each)), n)
        for n in (heads, kv_heads, kv_heads)
    )
    k, v = shared(rotated(k), "keys"), shared(v, "values")
    scores = m.emit("MatMul", rotated(q), m.emit("Transpose", k, perm=[0, 1, 3, 2]))
    scores = m.emit("Mul", scores, m.constant(each**-0.5, "float32"))
    hidden = np.triu(np.full((rows, past + rows), -1e4), past + 1)
    scores = m.emit("Add", scores, m.constant(hidden, "float32"))
    mixed = m.emit("MatMul", m.emit("Softmax", scores, axis=-1), v)
    mixed = m.emit("Transpose", mixed, perm=[0, 2, 1, 3])
    mixed = m.emit("Reshape", mixed, m.constant([1, rows, width]))
    first = m.emit("Add", m.emit("MatMul", mixed, m.weight(width, width)), "x")
    second = m.emit("Add", swiglu(m, rms_norm(m, first, width), width, 96), first)
    caches = {"keys": [1, kv_heads, past, each], "values": [1, kv_heads, past, each]}
    shape = [1, rows, width]
    return m.finish(shape, second, shape, **(caches if past else {}))


def conv(m, x, c, n, size=3):
    weight = m.weight(n, c, size, size, scale=(size * size * c) ** -0.5)
    return m.emit("Conv", x, weight, m.weight(n, scale=0.1), pads=[size // 2] * 4)


def resnet_block(channels=32, inner=8):
    """A bottleneck: three convolutions with batch norms, a residual."""
    m = Models()

    def normed(x, n):
        statistics = [m.weight(n, scale=0.1), m.weight(n, scale=0.1)]
        mean, variance = m.weight(n, scale=0.1), m.constant(np.full(n, 0.8), "float32")
        return m.emit("BatchNormalization", x, *statistics, mean, variance)

    x = m.emit("Relu", normed(conv(m, "x", channels, inner, 1), inner))
    x = m.emit("Relu", normed(conv(m, x, inner, inner), inner))
    x = normed(conv(m, x, inner, channels, 1), channels)
    shape = [1, channels, 7, 9]
    return m.finish(shape, m.emit("Relu", m.emit("Add", x, "x")), shape)


def unet_block(channels=16, groups=4, size=6):
    """Group norm, SiLU and convolution twice, a residual; attention between all points."""
    m = Models()
    shape = [1, channels, size, size]

    def normed(x):
        flat = m.emit("Reshape", x, m.constant([1, groups, -1]))
        ones, zeros = (
            m.constant(np.ones(groups), "float32"),
            m.constant(np.zeros(groups), "float32"),
        )
        flat = m.emit("InstanceNormalization", flat, ones, zeros)
        x = m.emit("Reshape", flat, m.constant(shape))
        factor, bias = m.weight(channels, 1, 1, scale=1.0), m.weight(channels, 1, 1, scale=0.1)
        return m.emit("Add", m.emit("Mul", x, factor), bias)

    def step(x):
        x = normed(x)
        return conv(m, m.emit("Mul", x, m.emit("Sigmoid", x)), channels, channels)

    first = m.emit("Add", step(step("x")), "x")
    rows = m.emit("Reshape", normed(first), m.constant([1, channels, size * size]))
    rows = m.emit("Transpose", rows, perm=[0, 2, 1])
    q, k, v = (m.linear(rows, channels, channels) for _ in range(3))
    scores = m.emit("MatMul", q, m.emit("Transpose", k, perm=[0, 2, 1]))
    scores = m.emit("Mul", scores, m.constant(channels**-0.5, "float32"))
    mixed = m.linear(m.emit("MatMul", m.emit("Softmax", scores, axis=-1), v), channels, channels)
    mixed = m.emit("Reshape", m.emit("Transpose", mixed, perm=[0, 2, 1]), m.constant(shape))
    return m.finish(shape, m.emit("Add", mixed, first), shape)


def mixtral_block(rows, width=32, experts=4, hidden=48):
    """SwiGLU by all experts, weighed by a softmax of the two best scores of each row."""
    m = Models()
    x = rms_norm(m, "x", width)
    scores = m.emit("MatMul", x, m.weight(width, experts, scale=0.25 * width**-0.5))
    # Apart by more than fp16 rounds, or it chooses others than fp32.
    apart = np.random.default_rng().permuted(np.tile(1.5 * np.arange(experts), (rows, 1)), axis=1)
    scores = m.emit("Add", scores, m.constant(apart, "float32"))
    m.nodes.append(("TopK", [scores, m.constant([2])], ["best", "chosen"], {"axis": -1}))
    zeros = m.emit("Mul", scores, m.constant(0, "float32"))
    best = m.emit("Softmax", "best", axis=-1)
    gates = m.emit("ScatterElements", zeros, "chosen", best, axis=-1)
    total = "x"
    for expert in range(experts):
        ends = (m.constant([expert + i]) for i in range(2))
        gate = m.emit("Slice", gates, *ends, m.constant([1]))
        total = m.emit("Add", total, m.emit("Mul", swiglu(m, x, width, hidden), gate))
    return m.finish([rows, width], total, [rows, width])


LAYERS = {
    "llama prefill": (lambda: llama_layer(40), {"x": (1, 40, 64)}),
    "llama decode": (
        lambda: llama_layer(1, 21),
        {"x": (1, 1, 64), "keys": (1, 2, 21, 16), "values": (1, 2, 21, 16)},
    ),
    "resnet block": (resnet_block, {"x": (1, 32, 7, 9)}),
    "unet block": (unet_block, {"x": (1, 16, 6, 6)}),
    "mixtral block": (lambda: mixtral_block(9), {"x": (9, 32)}),
    "mixtral block of many rows": (lambda: mixtral_block(49), {"x": (49, 32)}),
}


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("precision", ["float32", "fp16"])
@pytest.mark.parametrize("name", LAYERS)
def test_layers_are_right(gpu, tmp_path, name, precision, arch):
    build, shapes = LAYERS[name]
    model, inputs = build(), {key: draw(*shape) for key, shape in shapes.items()}
    options = {"precision": "fp16"} if precision == "fp16" else {}
    executable = load(model, arch, gpu, tmp_path / "a", **options)
    (found,) = executable(**inputs).values()
    agree(to_numpy(found), wanted(model, **inputs), "float16" if precision == "fp16" else "float32")
