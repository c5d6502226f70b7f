"""Concatenations that kernels store the parts of, and those that are copied."""

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.ir.transform import Sequential

import tvm_fusion
from tvm_fusion import transform
from tvm_fusion.deploy.build import lower
from tvm_fusion.device import parse
from tvm_fusion.fusion.fuse import plan_module

op = relax.op
RNG = np.random.default_rng(0)
IMAGE, ROWS = (2, 16, 9, 9), (96, 256)


def weight(*shape):
    return relax.const(RNG.standard_normal(shape, np.float32))


def conv(x, channels, window=3, act=op.nn.relu):
    y = op.nn.conv2d(x, weight(channels, int(x.ty.shape[1]), window, window), padding=window // 2)
    return y if act is None else act(y)


def dense(x, width):
    return op.nn.gelu(op.matmul(x, weight(int(x.ty.shape[1]), width)))


def summed(x):
    return conv(x, 8, act=None)


#: An input, the parts of a concatenation, its axis, and what reads it.
CASES = {
    "odd channels": (IMAGE, lambda x: [conv(x, n, 1) for n in (5, 7, 4)], 1, []),
    "rows": (ROWS, lambda x: [dense(x, 256), op.nn.softmax(x), dense(x, 300)], 1, []),
    "images": (IMAGE, lambda x: [conv(x, 32), conv(x, 32, 1)], 0, [summed]),
}


def module(shape, parts, finish):
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            found = [builder.emit(part) for part in parts(x)]
            outputs = [builder.emit_output(y) for y in finish(builder.emit, found)]
        builder.emit_func_output(relax.Tuple(outputs))
    return builder.get()


def compiled(mod, folder):
    artifact = tvm_fusion.compile(mod, target="cpu", rewrite="none")
    return tvm_fusion.load(artifact.export(folder))


def launched(executable):
    return [x["kernel"] for x in executable.manifest["functions"]["main"]["launches"]]


def results(executable, x):
    return [np.asarray(y) for y in executable(x=x).values()]


@tvm.transform.module_pass(opt_level=0, name="CopyParts")
def copy_parts(mod, _ctx):
    return mod


@pytest.mark.parametrize("name", CASES)
def test_each_kernel_stores_its_part(name, tmp_path, monkeypatch):
    shape, parts, axis, readers = CASES[name]

    def finish(emit, found):
        return [emit(read(emit(op.concat(found, axis)))) for read in readers or [lambda y: y]]

    mod = module(shape, parts, finish)
    stored = compiled(mod, tmp_path / "stored")
    monkeypatch.setattr(lower, "StoreConcatParts", lambda: copy_parts)
    copied = compiled(mod, tmp_path / "copied")
    x = np.random.default_rng(2).standard_normal(shape, np.float32)
    for found, expected in zip(results(stored, x), results(copied, x), strict=True):
        np.testing.assert_array_equal(found, expected)
    assert len(launched(stored)) == len(launched(copied)) - 1
    described = {name for group in stored.manifest["groups"] for name in group["kernels"]}
    assert described == set(launched(stored))


def test_what_reads_a_part_keeps_the_copy(tmp_path):
    def finish(emit, found):
        return [emit(op.concat(found, 1)), emit(op.nn.softmax(found[0]))]

    parts = CASES["images"][1]
    read = compiled(module(IMAGE, parts, finish), tmp_path)
    x = np.random.default_rng(2).standard_normal(IMAGE, np.float32)
    whole, softmax = results(read, x)
    first = np.exp(whole[:, :32])
    np.testing.assert_allclose(softmax, first / first.sum(-1, keepdims=True), rtol=1e-5)
    assert any("concat" in kernel for kernel in launched(read))


def test_an_edge_tells_where_its_tensor_is_stored():
    parts = CASES["odd channels"][1]
    mod = module(IMAGE, parts, lambda emit, found: [emit(op.concat(found, 1))])
    target = parse("cpu:x86-64-v3").tvm_target()
    with target:
        (planned,) = plan_module(Sequential([transform.Legalize()])(mod), target).values()
    sentences = [d.sentence for d in planned.decisions if d.code == "stored_in_place"]
    assert len(sentences) == 3
    assert all("stores its part" in sentence for sentence in sentences)
    assert [claim.launches for claim in planned.claims] == [1, 1, 1, 0]
