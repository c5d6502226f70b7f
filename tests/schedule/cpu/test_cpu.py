"""The generic CPU schedule: right for every kind of loop nest, and never naive loops."""

import numpy as np
import pytest
import tvm
from numpy.lib.stride_tricks import sliding_window_view
from tvm import relax, tirx

from tvm_fusion import transform
from tvm_fusion.core.decisions import recording
from tvm_fusion.device import parse

pytestmark = pytest.mark.slow_beyond(4)

op = relax.op


def tensor(name, shape, dtype="float32"):
    return relax.Var(name, relax.TensorType(shape, dtype))


def module(params, body):
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            y = builder.emit_output(builder.normalize(body(builder, *params)))
        builder.emit_func_output(y)
    return builder.get()


def stage(mod, target):
    """Legalize, fuse and schedule; no kernel may fall back."""
    with tvm.target.Target(target), recording() as decisions:
        mod = transform.FuseOperators()(transform.Legalize()(mod))
        mod = transform.ScheduleKernels()(mod)
    assert [d.sentence for d in decisions if d.verdict == "fallback"] == []
    return mod


def run(mod, *arrays):
    target = parse("cpu").tvm_target()
    executable = tvm.compile(stage(mod, target), target, tir_pipeline="tvm_fusion")
    machine = relax.VirtualMachine(executable, tvm.cpu())
    return machine["main"](*[tvm.runtime.tensor(a) for a in arrays]).numpy()


def arrays(*shapes, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape, "float32") for shape in shapes]


def close(actual, expected, tolerance=2e-5):
    assert actual.shape == expected.shape
    scale = np.abs(expected).max()
    assert np.abs(actual - expected).max() <= tolerance * scale


def convolve(x, w, stride, pad, dilation, groups):
    """Convolution in float64, straight from its definition."""
    x = np.pad(x.astype("float64"), ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    w = w.astype("float64")
    n, _, height, width = x.shape
    out, per_group, kh, kw = w.shape
    oh = (height - dilation * (kh - 1) - 1) // stride + 1
    ow = (width - dilation * (kw - 1) - 1) // stride + 1
    y = np.zeros((n, out, oh, ow))
    for o in range(out):
        first = o // (out // groups) * per_group
        for i, j in np.ndindex(kh, kw):
            rows = slice(i * dilation, i * dilation + (oh - 1) * stride + 1, stride)
            columns = slice(j * dilation, j * dilation + (ow - 1) * stride + 1, stride)
            patch = x[:, first : first + per_group, rows, columns]
            y[:, o] += np.einsum("nchw,c->nhw", patch, w[o, :, i, j])
    return y


@pytest.mark.parametrize(
    ("m", "k", "n"),
    [(1, 5, 3), (7, 33, 31), (8, 16, 32), (13, 1, 48), (197, 17, 197), (64, 70, 100)],
)
def test_matmul_with_epilogue(m, k, n):
    def body(builder, x, w, b):
        product = builder.emit(op.matmul(x, w))
        return op.nn.relu(builder.emit(op.add(product, b)))

    x, w, b = arrays((2, m, k), (k, n), (n,))
    mod = module([tensor("x", (2, m, k)), tensor("w", (k, n)), tensor("b", (n,))], body)
    close(run(mod, x, w, b), np.maximum(x.astype("float64") @ w + b, 0))


def test_batched_matmul_with_transposed_operand():
    def body(builder, q, k):
        return op.matmul(q, builder.emit(op.permute_dims(k, [0, 1, 3, 2])))

    q, k = arrays((2, 3, 37, 16), (2, 3, 19, 16))
    mod = module([tensor("q", q.shape), tensor("k", k.shape)], body)
    close(run(mod, q, k), q.astype("float64") @ k.transpose(0, 1, 3, 2))


@pytest.mark.parametrize("rows", [1, 5, 12])
def test_symbolic_rows(rows):
    n = tirx.Var("n", "int64")

    def body(builder, x, w):
        return op.nn.softmax(builder.emit(op.matmul(x, w)))

    x, w = arrays((rows, 24), (24, 40))
    mod = module([tensor("x", (n, 24)), tensor("w", (24, 40))], body)
    h = x.astype("float64") @ w
    e = np.exp(h - h.max(-1, keepdims=True))
    close(run(mod, x, w), e / e.sum(-1, keepdims=True))


@pytest.mark.parametrize(
    ("channels", "out", "size", "kernel", "stride", "pad", "dilation", "groups"),
    [
        (3, 8, 15, 3, 1, 1, 1, 1),
        (16, 24, 14, 1, 1, 0, 1, 1),
        (4, 6, 17, 5, 2, 2, 1, 1),
        (6, 12, 13, 3, 1, 2, 2, 3),
        (10, 10, 11, 3, 1, 1, 1, 10),  # depthwise
        (8, 8, 7, 3, 2, 1, 1, 8),
    ],
)
def test_convolution_with_epilogue(channels, out, size, kernel, stride, pad, dilation, groups):
    def body(builder, x, w, b):
        y = builder.emit(
            op.nn.conv2d(
                x,
                w,
                strides=(stride, stride),
                padding=(pad, pad),
                dilation=(dilation, dilation),
                groups=groups,
            )
        )
        return op.nn.relu(builder.emit(op.add(y, b)))

    x, w, b = arrays(
        (2, channels, size, size), (out, channels // groups, kernel, kernel), (1, out, 1, 1)
    )
    mod = module([tensor("x", x.shape), tensor("w", w.shape), tensor("b", b.shape)], body)
    close(run(mod, x, w, b), np.maximum(convolve(x, w, stride, pad, dilation, groups) + b, 0))


def layer_norm(x, gamma, beta):
    x = x.astype("float64")
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * gamma + beta


CASES = {
    "layer_norm": (
        [(3, 5, 33), (33,), (33,)],
        lambda b, x, g, h: op.nn.layer_norm(x, g, h, axes=[-1]),
        layer_norm,
    ),
    "sum of rows": ([(7, 129)], lambda b, x: op.sum(x, -1), lambda x: x.sum(-1, dtype="float64")),
    "max of columns": ([(129, 7)], lambda b, x: op.max(x, 0), lambda x: x.max(0)),
    "mean of all": ([(3, 11, 13)], lambda b, x: op.mean(x), lambda x: x.mean(dtype="float64")),
    "transpose": (
        [(3, 17, 9)],
        lambda b, x: op.permute_dims(x, [2, 0, 1]),
        lambda x: x.transpose(2, 0, 1),
    ),
    "concat": (
        [(3, 5), (3, 7)],
        lambda b, x, y: op.nn.relu(b.emit(op.concat([x, y], 1))),
        lambda x, y: np.maximum(np.concatenate([x, y], 1), 0),
    ),
    "max_pool": (
        [(1, 3, 9, 9)],
        lambda b, x: op.nn.max_pool2d(x, (3, 3), strides=(2, 2)),
        lambda x: sliding_window_view(x, (3, 3), (2, 3))[:, :, ::2, ::2].max((-1, -2)),
    ),
    "diamond": (
        [(257,)],
        lambda b, x: _diamond(b, x),
        lambda x: x.astype("float64") * 2.0**12,
    ),
    "big map": ([(129, 257)], lambda b, x: op.exp(x), lambda x: np.exp(x.astype("float64"))),
}  # fmt: skip


def _diamond(builder, x):
    """Twelve doublings: inlining every one would make an expression of 4096 loads."""
    for _ in range(11):
        x = builder.emit(op.add(x, x))
    return op.add(x, x)


@pytest.mark.parametrize("case", CASES)
def test_other_nests(case):
    shapes, body, expected = CASES[case]
    inputs = arrays(*shapes, seed=len(case))
    mod = module([tensor(f"x{i}", shape) for i, shape in enumerate(shapes)], body)
    close(run(mod, *inputs), np.asarray(expected(*inputs)))


def prim_funcs(mod):
    return [f for f in mod.functions.values() if isinstance(f, tirx.PrimFunc)]


MATMUL = [tensor("x", (64, 64)), tensor("w", (64, 64))]


@pytest.mark.parametrize(
    ("cpu", "widest"), [("cpu:x86-64-v3", 16), ("cpu:skylake-avx512", 64), ("cpu:neoverse-n1", 16)]
)
def test_register_tile_follows_the_target(cpu, widest):
    mod = stage(module(MATMUL, lambda b, x, w: op.matmul(x, w)), parse(cpu).tvm_target())
    (func,) = prim_funcs(mod)
    text = func.script()
    assert f"T.vectorized(T.int64({widest}))" in text
    assert "T.parallel" in text
    assert 'scope="local"' in text


@pytest.mark.parametrize(
    ("cpu", "instruction"),
    [("cpu:skylake-avx512", "zmm"), ("cpu:x86-64-v3", "vfmadd"), ("cpu:neoverse-n1", "fmla")],
)
def test_machine_code_has_the_targets_vectors(cpu, instruction):
    target = parse(cpu).tvm_target()
    mod = stage(module(MATMUL, lambda b, x, w: op.matmul(x, w)), target)
    executable = tvm.compile(mod, target, tir_pipeline="tvm_fusion")
    assert instruction in executable.mod.imports[0].inspect_source("asm")
