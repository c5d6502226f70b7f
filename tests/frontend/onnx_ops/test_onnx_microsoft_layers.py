"""Embedding, group normalization, packed weights against ONNX Runtime."""

import numpy as np
import pytest

F32 = "float32"


@pytest.mark.parametrize("given", [("segment", "mask"), ("positions",)])
def test_embedding(agrees, rng, given):
    optional = {
        "segment": rng.integers(0, 2, (2, 5)).astype("int32"),
        "table": rng.standard_normal((2, 8), F32),
        "mask": np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], "int32"),
        "positions": rng.integers(0, 9, (2, 5)).astype("int32"),
    }
    has_segment = "segment" in given

    def name(key, there):
        return key if there else f"_{key}"

    inputs = {
        "ids": rng.integers(0, 11, (2, 5)).astype("int32"),
        name("segment", has_segment): optional["segment"],
        "words": rng.standard_normal((11, 8), F32),
        "places": rng.standard_normal((9, 8), F32),
        name("table", has_segment): optional["table"],
        "gamma": rng.standard_normal(8, F32),
        "beta": rng.standard_normal(8, F32),
        name("mask", "mask" in given): optional["mask"],
        name("positions", "positions" in given): optional["positions"],
    }
    outputs = {"y": F32, "index": "int32", "total": F32}
    agrees("com.microsoft::EmbedLayerNormalization", inputs, outputs, atol=1e-5, epsilon=1e-5)


@pytest.mark.parametrize("activation", [0, 1])
def test_group_norm(agrees, rng, activation):
    """ONNX Runtime has it on GPUs alone: the reference is numpy."""
    x = rng.standard_normal((2, 3, 5, 6))
    gamma, beta = rng.standard_normal((2, 6))
    parts = x.reshape(2, 15, 3, 2)
    centered = parts - parts.mean((1, 3), keepdims=True)
    wanted = centered / np.sqrt((centered**2).mean((1, 3), keepdims=True) + 1e-5)
    wanted = wanted.reshape(x.shape) * gamma + beta
    if activation:
        wanted /= 1 + np.exp(-wanted)
    inputs = {"x": x.astype(F32), "g": gamma.astype(F32), "b": beta.astype(F32)}
    agrees("com.microsoft::GroupNorm", inputs, {"y": F32}, expected=[wanted.astype(F32)],
           atol=2e-5, groups=3, activation=activation, channels_last=1)  # fmt: skip


def test_skip_group_norm(agrees, rng):
    x, skip = rng.standard_normal((2, 3, 5, 6)), rng.standard_normal((2, 1, 1, 6))
    total = x + skip
    parts = total.reshape(2, 15, 2, 3)
    centered = parts - parts.mean((1, 3), keepdims=True)
    wanted = centered / np.sqrt((centered**2).mean((1, 3), keepdims=True) + 1e-5)
    inputs = {"x": x, "g": np.ones(6), "b": np.zeros(6), "s": skip.reshape(2, 6)}
    inputs = {name: a.astype(F32) for name, a in inputs.items()}
    wanted = [wanted.reshape(x.shape).astype(F32), total.astype(F32)]
    agrees("com.microsoft::SkipGroupNorm", inputs, {"y": F32, "s1": F32}, expected=wanted,
           atol=2e-5, groups=2)  # fmt: skip


@pytest.mark.parametrize(
    ("bits", "terms", "zeros"),
    [(4, 64, None), (4, 64, "uint8"), (4, 40, "uint8"), (4, 48, F32), (8, 64, "uint8")],
)
def test_packed_weights(agrees, rng, bits, terms, zeros):
    size, columns = 16, 7
    blocks = -(-terms // size)
    inputs = {"x": rng.standard_normal((3, terms), F32)}
    inputs["q"] = rng.integers(0, 256, (columns, blocks, size * bits // 8)).astype("uint8")
    inputs["s"] = rng.uniform(0.1, 1, (columns, blocks)).astype(F32)
    if zeros == "uint8":
        held = -(-blocks * bits // 8)
        inputs["z"] = rng.integers(0, 256, (columns, held)).astype("uint8")
    elif zeros is not None:
        inputs["z"] = rng.uniform(0, 15, (columns, blocks)).astype(F32)
    constants = [name for name in "qsz" if name in inputs]
    agrees("com.microsoft::MatMulNBits", inputs, {"y": F32}, constants=constants, rtol=1e-4,
           atol=1e-3, bits=bits, K=terms, N=columns, block_size=size)  # fmt: skip


def test_activations_of_int8(agrees, rng):
    """As ONNX Runtime rounds them at accuracy level 4: a scale for each block of a row."""
    size, terms, columns = 32, 96, 7
    inputs = {"x": rng.standard_normal((3, terms), F32)}
    inputs["x"][0, :size] = 0
    inputs["q"] = rng.integers(0, 256, (columns, terms // size, size // 2)).astype("uint8")
    inputs["s"] = rng.uniform(0.1, 1, (columns, terms // size)).astype(F32)
    (got,) = agrees("com.microsoft::MatMulNBits", inputs, {"y": F32}, constants=["q", "s"],
                    rtol=1e-4, atol=1e-3, bits=4, K=terms, N=columns, block_size=size,
                    accuracy_level=4)  # fmt: skip
    q = np.stack([inputs["q"] & 15, inputs["q"] >> 4], -1).reshape(columns, -1, size) - 8.0
    exact = inputs["x"] @ (q * inputs["s"][..., None]).reshape(columns, terms).T
    assert np.abs(got - exact).max() > 1e-3
