"""Bfloat16 on a CPU: small operators within one rounding of float64, NaN kept, vectors made."""

import math

import ml_dtypes
import numpy as np
import pytest
import tvm
from group_kernels import tensor
from relax_modules import main_module
from tvm import relax
from tvm.script import tirx as T

from tvm_fusion.device import parse

op = relax.op
BF16 = ml_dtypes.bfloat16


def build(compute, *shapes, target="cpu", dtype="bfloat16"):
    params = [tensor(f"x{i}", *shape, dtype=dtype) for i, shape in enumerate(shapes)]
    llvm = parse(target).tvm_target()
    with llvm:
        return tvm.compile(
            main_module(params, compute(*params)),
            llvm,
            relax_pipeline="tvm_fusion",
            tir_pipeline="tvm_fusion",
        )


def run(executable, *arrays):
    machine = relax.VirtualMachine(executable, tvm.cpu())
    return machine["main"](*map(tvm.runtime.tensor, arrays)).numpy().astype(np.float64)


def softmax(x):
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def convolve(x, kernel):
    windows = np.lib.stride_tricks.sliding_window_view(
        np.pad(x, [(0, 0), (0, 0), (1, 1), (1, 1)]), (3, 3), (2, 3)
    )
    return np.einsum("nchwij,ocij->nohw", windows, kernel)


def norm(x):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)


def attention(q, k, v):
    return op.matmul(op.nn.softmax(op.matmul(q, op.permute_dims(k, [0, 2, 1]))), v)


ONES, ZEROS = np.ones(33, BF16), np.zeros(33, BF16)
X, HEADS = (5, 33), (2, 19, 16)
CASES = {
    "relu": ((X,), op.nn.relu, lambda x: np.maximum(x, 0)),
    "add": ((X, X), op.add, np.add),
    "exp": ((X,), op.exp, np.exp),
    "sum": ((X,), lambda x: op.sum(x, -1), lambda x: x.sum(-1)),
    "max": ((X,), lambda x: op.max(x, -1), lambda x: x.max(-1)),
    "argmax": ((X,), lambda x: op.argmax(x, -1), lambda x: x.argmax(-1)),
    "matmul": ((X, (33, 41)), op.matmul, np.matmul),
    "matmul and relu": (
        (X, (33, 41), (41,)),
        lambda x, w, b: op.nn.relu(op.matmul(x, w) + b),
        lambda x, w, b: np.maximum(x @ w + b, 0),
    ),
    "softmax": ((X,), op.nn.softmax, softmax),
    "layer norm": (
        (X,),
        lambda x: op.nn.layer_norm(x, relax.const(ONES), relax.const(ZEROS), axes=[-1]),
        norm,
    ),
    "silu": ((X,), op.nn.silu, lambda x: x / (1 + np.exp(-x))),
    "transposed": (
        (X,),
        lambda x: op.permute_dims(x) * relax.const(2, "bfloat16"),
        lambda x: 2 * x.T,
    ),
    "concatenated": (
        ((5, 32),),
        lambda x: op.concat([op.negative(x), x], 1),
        lambda x: np.concatenate([-x, x], 1),
    ),
    "convolution": (
        ((1, 4, 9, 7), (6, 4, 3, 3)),
        lambda x, w: op.nn.conv2d(x, w, padding=1),
        convolve,
    ),
    "attention": ((HEADS,) * 3, attention, lambda q, k, v: softmax(q @ k.transpose(0, 2, 1)) @ v),
}


@pytest.mark.slow_beyond(5)
@pytest.mark.parametrize("name", CASES)
def test_operators(name):
    shapes, compute, expected = CASES[name]
    rng = np.random.default_rng(5)
    arrays = [rng.standard_normal(shape).astype(BF16) for shape in shapes]
    found = run(build(compute, *shapes), *arrays)
    wanted = expected(*(a.astype(np.float64) for a in arrays))
    # A few roundings of 2**-9 each, of numbers as large as the largest.
    np.testing.assert_allclose(found, wanted, rtol=2**-7, atol=2**-8 * np.abs(wanted).max())


def test_every_number_is_kept():
    """Zeros, subnormal and infinite numbers, NaN of all payloads: a maximum rounds nothing."""
    x = np.arange(2**16, dtype=np.uint16).view(BF16)
    found = run(build(lambda x: op.maximum(x, x), x.shape), x)
    np.testing.assert_array_equal(found, x.astype(np.float64))


def test_rounding_is_to_the_nearest_even():
    rng = np.random.default_rng(6)
    x, y = (rng.standard_normal(4096).astype(BF16) for _ in range(2))
    found = run(build(op.add, x.shape, y.shape), x, y)
    exact = x.astype(np.float32) + y.astype(np.float32)
    np.testing.assert_array_equal(found, exact.astype(BF16).astype(np.float64))


def test_casts_through_bfloat16_round():
    x = np.array([1 + 2**-8 + 2**-12, math.nan, -math.inf, 3.1415927], np.float32)
    param = tensor("x", 4)

    def result(emit, *_):
        half = emit(op.astype(param, "bfloat16"))
        return op.astype(half, "float32")

    target = parse("cpu").tvm_target()
    with target:
        executable = tvm.compile(
            main_module([param], result),
            target,
            relax_pipeline="tvm_fusion",
            tir_pipeline="tvm_fusion",
        )
    np.testing.assert_array_equal(run(executable, x), x.astype(BF16).astype(np.float64))


def test_nan_of_every_payload_stays_nan():
    bits = np.array([0x7F800001, 0x7FFFFFFF, 0xFF800001, 0xFFFFFFFF, 0x7F800000], np.uint32)
    param = tensor("x", 5)
    target = parse("cpu:x86-64-v3").tvm_target()
    with target:
        executable = tvm.compile(
            main_module([param], lambda *_: op.astype(param, "bfloat16")),
            target,
            relax_pipeline="tvm_fusion",
            tir_pipeline="tvm_fusion",
        )
    found = run(executable, bits.view(np.float32))
    assert list(np.isnan(found)) == [True] * 4 + [False]


def assembly(executable):
    kernels = [m for m in (executable.mod, *executable.mod.imports) if m.kind == "llvm"]
    return "".join(m.inspect_source("asm") for m in kernels)


def test_vectors_are_made():
    found = assembly(build(op.exp, (64, 64), target="cpu:skylake-avx512"))
    assert "vpmovzxwd" in found  # 16 bits of each lane into 32
    assert "expf" not in found


def test_pools_of_float16_convert_elements_once():
    """AVX2 has no arithmetic of float16: a maximum converts elements, and the result at the end."""
    found = assembly(
        build(
            lambda x: op.nn.max_pool2d(x, (3, 3), (2, 2), (1, 1), layout="NHWC"),
            (1, 21, 21, 32),
            target="cpu:x86-64-v3",
            dtype="float16",
        )
    )
    vectors = 32 // 8
    assert found.count("\tvcvtps2ph") == vectors
    assert found.count("\tvcvtph2ps") <= 9 * vectors


def test_avx2_rounds_without_blends():
    found = assembly(build(lambda x: x * x, (64, 64), target="cpu:x86-64-v3"))
    assert "vpackusdw" in found
    assert "vblendvps" not in found


@T.prim_func(s_tir=True)
def bound(a: T.Buffer((8,), "bfloat16"), out: T.Buffer((8,), "float32")):
    for i in range(8):
        x = T.float32()
        out[i] = T.Let(x * x, where={x: T.Cast("float32", a[i])})


def test_tvm_does_not_look_into_bindings():
    """Fails where TVM's pass does: then perhaps LowerBF16 is no longer needed."""
    a = np.arange(1, 9).astype(BF16)
    found = {}
    for pipeline in ("default", "tvm_fusion"):
        out = tvm.runtime.tensor(np.zeros(8, np.float32))
        mod = tvm.IRModule({"main": bound.with_attr("global_symbol", "main")})
        built = tvm.tirx.build(mod, target=parse("cpu").tvm_target(), pipeline=pipeline)
        built["main"](tvm.runtime.tensor(a), out)
        found[pipeline] = out.numpy()
    np.testing.assert_array_equal(found["tvm_fusion"], np.arange(1, 9) ** 2)
    assert not np.array_equal(found["default"], found["tvm_fusion"])


@tvm.register_global_func("test_tvm_bf16_lower.element_type")
def element_type(array, out):
    out.copyfrom(np.full(1, str(array.dtype) == "bfloat16"))


@T.prim_func(s_tir=True)
def passed_on(a: T.Buffer((8,), "bfloat16"), out: T.Buffer((1,), "bool")):
    with T.sblock("call"):
        T.reads(a[0:8])
        T.writes(out[0:1])
        T.evaluate(
            T.call_packed(
                "test_tvm_bf16_lower.element_type",
                T.tvm_stack_make_array(a.data, T.tvm_stack_make_shape(8), 0, 1, T.bfloat16(0), 0),
                T.tvm_stack_make_array(out.data, T.tvm_stack_make_shape(1), 0, 1, T.bool(False), 0),
            )
        )


def test_functions_outside_are_told_the_element_type():
    """Told float32, they would read past the end."""
    out = tvm.runtime.tensor(np.zeros(1, bool))
    mod = tvm.IRModule({"main": passed_on.with_attr("global_symbol", "main")})
    built = tvm.tirx.build(mod, target=parse("cpu").tvm_target(), pipeline="tvm_fusion")
    built["main"](tvm.runtime.tensor(np.zeros(8, BF16)), out)
    assert out.numpy()[0]
