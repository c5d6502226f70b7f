"""Whole models through ``load``: AMD's machine code in an interpreter, behind a HIP of our own."""

import gc
import itertools
import threading

import numpy as np
import pytest
import tvm_ffi
from rocm_models import ARCHS, Models, agree, draw, load, wanted
from tvm import relax

from tvm_fusion import DimRange
from tvm_fusion.deploy.runtime.tensors import to_numpy, to_tensor
from tvm_fusion.deploy.toolchain import rocm

pytestmark = [
    pytest.mark.rocm_toolchain,
    pytest.mark.skipif(rocm.find_lld() is None, reason="no lld 19 or newer was found"),
]
op = relax.op


def mlp(rows, widths=(40, 72, 56, 24)):
    m, x = Models(), "x"
    for i, (k, n) in enumerate(itertools.pairwise(widths)):
        x = m.linear(x, k, n)
        x = m.emit("Relu", x) if i < len(widths) - 2 else m.emit("Softmax", x)
    return m.finish([rows, widths[0]], x, [rows, widths[-1]])


def bert_layer(rows, width=32, heads=2):
    """Attention and a feed-forward block, each with its residual and norm."""
    m, each = Models(), width // heads

    def norm(x):
        scale, bias = m.weight(width, scale=1.0), m.weight(width, scale=0.1)
        return m.emit("LayerNormalization", x, scale, bias, axis=-1)

    def split(x, perm):
        x = m.emit("Reshape", x, m.constant([1, -1, heads, each]))
        return m.emit("Transpose", x, perm=perm)

    q = split(m.linear("x", width, width), [0, 2, 1, 3])
    k = split(m.linear("x", width, width), [0, 2, 3, 1])
    v = split(m.linear("x", width, width), [0, 2, 1, 3])
    scores = m.emit("Mul", m.emit("MatMul", q, k), m.constant(each**-0.5, "float32"))
    mixed = m.emit("MatMul", m.emit("Softmax", scores, axis=-1), v)
    mixed = m.emit("Transpose", mixed, perm=[0, 2, 1, 3])
    mixed = m.emit("Reshape", mixed, m.constant([1, -1, width]))
    first = norm(m.emit("Add", m.linear(mixed, width, width), "x"))
    wide = m.emit("Relu", m.linear(first, width, 2 * width))
    second = norm(m.emit("Add", m.linear(wide, 2 * width, width), first))
    return m.finish([1, rows, width], second, [1, rows, width])


def convolution_net():
    """Convolutions, one strided, a residual, a pool, a classifier."""
    m = Models()

    def conv(x, c, n, **attributes):
        weight, bias = m.weight(n, c, 3, 3, scale=(9 * c) ** -0.5), m.weight(n, scale=0.1)
        return m.emit("Conv", x, weight, bias, pads=[1, 1, 1, 1], **attributes)

    first = m.emit("Relu", conv("x", 3, 8, strides=[2, 2]))
    second = m.emit("Relu", conv(first, 8, 8))
    joined = m.emit("Relu", m.emit("Add", conv(second, 8, 8), first))
    pooled = m.emit("Flatten", m.emit("GlobalAveragePool", joined))
    return m.finish([1, 3, 12, 12], m.linear(pooled, 8, 10), [1, 10])


MODELS = {
    "mlp": (mlp, (5,), (5, 40)),
    "bert layer": (bert_layer, (12,), (1, 12, 32)),
    "convolutions": (convolution_net, (), (1, 3, 12, 12)),
}


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("name", MODELS)
def test_models_are_right_and_go_on_being_right(gpu, tmp_path, name, arch):
    """Three calls: kernel by kernel, then as a graph; each with other inputs."""
    build, arguments, shape = MODELS[name]
    model = build(*arguments)
    executable = load(model, arch, gpu, tmp_path / "a")
    for _ in range(3):
        x = draw(*shape)
        (found,) = executable(x=x).values()
        agree(to_numpy(found), wanted(model, x))


@pytest.mark.parametrize("arch", ARCHS)
def test_halves(gpu, tmp_path, arch):
    model = bert_layer(12)
    x = draw(1, 12, 32)
    executable = load(model, arch, gpu, tmp_path / "a", precision="fp16")
    (found,) = executable(x=x).values()
    agree(to_numpy(found), wanted(model, x), "float16")


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("build", [mlp, bert_layer])
def test_symbolic_dimensions(gpu, tmp_path, arch, build):
    model = build("rows")
    executable = load(model, arch, gpu, tmp_path / "a", dims={"rows": DimRange(1, 64)})
    for rows in (1, 7, 33, 7):
        x = draw(1, rows, 32) if build is bert_layer else draw(rows, 40)
        (found,) = executable(x=x).values()
        agree(to_numpy(found), wanted(model, x))


def test_streams_of_several_threads(gpu, tmp_path):
    """Each launches on a stream of its own, and nobody else's wait helps it."""
    model = mlp(5)
    executable = load(model, "gfx942", gpu, tmp_path / "a")
    device, faults = executable.device, []
    create = tvm_ffi.get_global_func("runtime.Device_StreamCreate")
    free = tvm_ffi.get_global_func("runtime.Device_StreamFree")
    inputs = [draw(5, 40) for _ in range(3)]
    wants = [wanted(model, x) for x in inputs]

    def call(x, want):
        try:
            stream = create(device)
            with tvm_ffi.use_raw_stream(device, stream):
                given = to_tensor(x, device)
                for _ in range(3):
                    (found,) = executable(x=given).values()
                    agree(to_numpy(found), want)
            free(device, stream)
        except Exception as error:  # guard: told by the main thread
            faults.append(error)

    threads = [threading.Thread(target=call, args=one) for one in zip(inputs, wants, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []


PLACES, HEADS, EACH = 7, 2, 16
CACHES = {"keys": "output_1", "values": "output_2"}


def decoder_step():
    """Attention of one token over caches, into which it writes its own key and value first."""
    builder = relax.BlockBuilder()
    one, cache = (1, HEADS, 1, EACH), (1, HEADS, PLACES, EACH)
    shapes = {
        "q": one,
        "k": one,
        "v": one,
        "keys": cache,
        "values": cache,
        "mask": (1, 1, 1, PLACES),
    }
    given = {n: relax.Var(n, relax.TensorType(s, "float32")) for n, s in shapes.items()}
    position = relax.Var("position", relax.TensorType((1,), "int64"))
    numbers = relax.const(np.arange(PLACES)[:, None], "int64")
    with builder.function("main", [*given.values(), position]):
        with builder.dataflow():
            hit = op.reshape(op.equal(numbers, op.expand_dims(position, 0)), [PLACES, 1])
            keys = builder.emit(op.where(hit, given["k"], given["keys"]))
            values = builder.emit(op.where(hit, given["v"], given["values"]))
            scores = op.matmul(given["q"], op.permute_dims(keys, [0, 1, 3, 2]))
            weights = builder.emit(op.nn.softmax(op.add(scores, given["mask"])))
            mixed = builder.emit(op.matmul(weights, values))
            whole = builder.emit_output(relax.Tuple([mixed, keys, values]))
        builder.emit_func_output(whole)
    return builder.get()


@pytest.mark.parametrize("arch", ARCHS)
def test_caches_that_are_written_in_place(gpu, tmp_path, arch):
    executable = load(
        decoder_step(), arch, gpu, tmp_path / "a", in_place=CACHES, static_inputs=list(CACHES)
    )
    shape = (1, HEADS, PLACES, EACH)
    keys, values = np.zeros(shape, "float32"), np.zeros(shape, "float32")
    caches = {
        "keys": to_tensor(keys, executable.device),
        "values": to_tensor(values, executable.device),
    }
    step = executable.bind(caches)
    for position in range(4):
        q, k, v = (draw(1, HEADS, 1, EACH) for _ in range(3))
        mask = np.where(np.arange(PLACES) <= position, 0, -1e9).astype("float32")
        keys[:, :, position], values[:, :, position] = k[:, :, 0], v[:, :, 0]
        given = {"q": q, "k": k, "v": v, "mask": mask.reshape(1, 1, 1, -1)}
        result = step.run({**given, "position": np.array([position])})
        scores = (q.astype("float64") @ keys.swapaxes(2, 3)) + mask
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        agree(to_numpy(result["output_0"]), weights / weights.sum(-1, keepdims=True) @ values)
        np.testing.assert_array_equal(to_numpy(caches["keys"]), keys)
        np.testing.assert_array_equal(to_numpy(caches["values"]), values)
    del executable, step, caches
    gc.collect()
