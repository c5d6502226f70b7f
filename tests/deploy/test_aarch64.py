"""Kernels for Arm CPUs against float64, in QEMU: convolutions, a layer of a transformer."""

import dataclasses
import re

import numpy as np
import pytest
import tvm
from aarch64 import Emulator
from relax_modules import main_module
from tvm import relax

import tvm_fusion
from tests.schedule.convolution.conv_cases import TOLERANCES, Conv, claimed
from tvm_fusion.device import parse
from tvm_fusion.schedule.convolution.template import CpuConvolution

op = relax.op
NONE = (0, 0, 0, 0)
NEON, DOT_PRODUCTS, SVE = "cpu:aarch64", "cpu:cortex-a76", "cpu:neoverse-v1"
PLAIN = {"block_in": 0, "block_out": 0}
CASES = {
    "pointwise": Conv(32, 48, (7, 7), (1, 1), padding=NONE, **PLAIN),
    "odd": Conv(20, 33, (13, 5), batch=2, **PLAIN),
    "strided": Conv(17, 16, (13, 14), stride=(2, 2), padding=(0, 1, 2, 1), **PLAIN),
    "dilated": Conv(16, 20, (9, 11), dilation=(2, 2), padding=(2, 2, 2, 2), **PLAIN),
    "wide": Conv(64, 64, (28, 28), **PLAIN),
    "grouped": Conv(32, 32, (7, 9), groups=8, **PLAIN),
    "first": Conv(3, 40, (17, 18), (7, 7), (2, 2), (3, 3, 3, 3), **PLAIN),
    "depthwise": Conv(36, 36, (9, 7), groups=36, **PLAIN),
}


@pytest.fixture(scope="module")
def emulator(tmp_path_factory):
    try:
        return Emulator(tmp_path_factory.mktemp("aarch64"))
    except LookupError as error:
        pytest.skip(str(error))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "dtype"),
    [
        (NEON, "float32"),
        (NEON, "uint8"),
        (NEON, "float16"),
        (NEON, "bfloat16"),
        (DOT_PRODUCTS, "uint8"),
        (SVE, "float32"),
        (SVE, "bfloat16"),
    ],
)
def test_convolutions(emulator, target, dtype, tmp_path):
    cases = [dataclasses.replace(case, dtype=dtype) for case in CASES.values()]
    images = {name: case.image() for name, case in zip(CASES, cases, strict=True)}
    params = [relax.Var(n, relax.TensorType(a.shape, dtype)) for n, a in images.items()]

    def body(emit, *xs):
        return [case.body(emit, x) for case, x in zip(cases, xs, strict=True)]

    artifact = tvm_fusion.compile(main_module(params, body), target=target)
    codes = {d["code"] for d in artifact.manifest["decisions"]}
    assert "claim_broken" not in codes
    found = emulator.run(artifact, tmp_path, images)
    for name, case, result in zip(CASES, cases, found, strict=True):
        expected = case.reference(images[name])
        np.testing.assert_allclose(
            result.astype("float64"), expected, **TOLERANCES[dtype], err_msg=name
        )


def layer_weights(width):
    rng = np.random.default_rng(5)
    shapes = {"qkv": (width, 3 * width), "out": (width, width), "up": (width, 4 * width)}
    shapes["down"] = (4 * width, width)
    return {
        n: (rng.standard_normal(s) / np.sqrt(s[0])).astype("float32") for n, s in shapes.items()
    }


def layer(emit, x, weights, heads):
    """Attention and a feed-forward network of a transformer, norms before both."""
    batch, length, width = (int(d) for d in x.ty.shape)
    one, zero = (relax.const(f(width, "float32")) for f in (np.ones, np.zeros))

    def normed(x):
        return emit(op.nn.layer_norm(x, one, zero, axes=[-1], epsilon=1e-5))

    def times(x, name):
        return emit(op.matmul(x, relax.const(weights[name])))

    qkv = emit(op.split(times(normed(x), "qkv"), 3, -1))
    shape = (batch, length, heads, width // heads)
    q, k, v = (emit(op.reshape(emit(qkv[i]), shape)) for i in range(3))
    attended = emit(op.reshape(emit(op.nn.attention(q, k, v)), (batch, length, width)))
    x = emit(op.add(x, times(attended, "out")))
    return emit(op.add(x, times(emit(op.nn.gelu_tanh(times(normed(x), "up"))), "down")))


def layer_reference(x, weights, heads):
    x, weights = x.astype("float64"), {n: w.astype("float64") for n, w in weights.items()}

    def normed(x):
        centred = x - x.mean(-1, keepdims=True)
        return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)

    batch, length, width = x.shape
    q, k, v = np.split(normed(x) @ weights["qkv"], 3, -1)
    q, k, v = (a.reshape(batch, length, heads, -1).transpose(0, 2, 1, 3) for a in (q, k, v))
    scores = q @ k.transpose(0, 1, 3, 2) / np.sqrt(width // heads)
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    attended = (scores / scores.sum(-1, keepdims=True)) @ v
    x = x + attended.transpose(0, 2, 1, 3).reshape(x.shape) @ weights["out"]
    up = normed(x) @ weights["up"]
    up = up / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (up + 0.044715 * up**3)))
    return x + up @ weights["down"]


@pytest.mark.slow
@pytest.mark.parametrize("target", [NEON, SVE])
@pytest.mark.parametrize("length", [1, 37])
def test_a_layer_of_a_transformer(emulator, target, length, tmp_path):
    weights = layer_weights(96)
    x = np.random.default_rng().standard_normal((2, length, 96)).astype("float32")
    params = [relax.Var("x", relax.TensorType(x.shape, "float32"))]
    mod = main_module(params, lambda emit, x: layer(emit, x, weights, 3))
    (found,) = emulator.run(tvm_fusion.compile(mod, target=target), tmp_path, {"x": x})
    expected = layer_reference(x, weights, 3)
    assert np.abs(found - expected).max() < 1e-5 * np.abs(expected).max()


def test_a_window_is_a_loop_that_spills_nothing():
    """LLVM wrote out all 36 steps, of which it spilled 598 vectors."""
    spec = parse(DOT_PRODUCTS)
    conv = Conv(64, 64, (56, 56), block_in=4, block_out=4)
    claim, target = claimed(conv.params(), conv.body, spec), spec.tvm_target()
    (kernel,) = CpuConvolution().emit(claim, target).kernels
    mod = tvm.IRModule({"main": kernel.func.with_attr("global_symbol", "main")})
    code = tvm.compile(mod, target, tir_pipeline="tvm_fusion").mod.inspect_source("asm")
    multiplied = re.findall(r"\bfmla\s+v\d+\.4s, v\d+\.4s, v\d+\.s\[\d\]", code)
    spilled = re.findall(r"\bst[rp]\s+q\d+, .*\[sp", code)
    config = claim.details.config
    assert len(multiplied) >= config.height * config.width * config.vectors
    assert len(spilled) < len(multiplied) / 2
