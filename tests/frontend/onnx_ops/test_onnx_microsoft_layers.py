"""Embedding and group normalization against ONNX Runtime."""

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
