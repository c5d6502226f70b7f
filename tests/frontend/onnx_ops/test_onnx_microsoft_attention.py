"""Attention operators of ONNX Runtime against ONNX Runtime."""

import numpy as np
import pytest

pytestmark = pytest.mark.slow_beyond(2)

F32 = "float32"
ATTENTION = "com.microsoft::Attention"
MHA = "com.microsoft::MultiHeadAttention"
GQA = "com.microsoft::GroupQueryAttention"
ROTARY = "com.microsoft::RotaryEmbedding"
B, S, N, H = 2, 5, 3, 16
D = N * H


def projected(rng, **others):
    return {
        "x": rng.standard_normal((B, S, 7), F32),
        "w": rng.standard_normal((7, 3 * D), F32),
        "b": rng.standard_normal(3 * D, F32),
        **others,
    }


@pytest.mark.slow
@pytest.mark.parametrize("mask", [None, (B, S), (B,), (B, S, S)])
def test_attention(agrees, rng, mask):
    inputs = projected(rng)
    if mask is not None:
        low, high = (1, S + 1) if len(mask) == 1 else (0, 2)
        inputs["m"] = rng.integers(low, high, mask).astype("int32")
        inputs["m"][..., 0] |= 1
    agrees(ATTENTION, inputs, {"y": F32}, constants=["w"], num_heads=N, atol=2e-5, rtol=1e-4)


@pytest.mark.slow
def test_attention_behind_a_cache(agrees, rng):
    past = rng.standard_normal((2, B, N, 4, H), F32)
    inputs = projected(rng, _m=past, past=past)
    attrs = {"num_heads": N, "unidirectional": 1, "scale": 0.3}
    agrees(ATTENTION, inputs, {"y": F32, "present": F32}, constants=["w"], atol=2e-5, rtol=1e-4,
           **attrs)  # fmt: skip


@pytest.mark.slow
def test_attention_with_a_bias_of_scores(agrees, rng):
    bias = rng.standard_normal((1, N, S, S), F32)
    inputs = projected(rng, _m=bias, _past=bias, bias=bias)
    agrees(ATTENTION, inputs, {"y": F32}, constants=["w"], num_heads=N, atol=2e-5, rtol=1e-4)


def states(rng, keys=6, **others):
    return {
        "q": rng.standard_normal((B, S, D), F32),
        "k": rng.standard_normal((B, keys, D), F32),
        "v": rng.standard_normal((B, keys, D), F32),
        **others,
    }


@pytest.mark.slow
@pytest.mark.parametrize("mask", [(B, 6), (B,)])
def test_multi_head_attention(agrees, rng, mask):
    low, high = (1, 7) if len(mask) == 1 else (0, 2)
    lengths = rng.integers(low, high, mask).astype("int32")
    lengths[..., 0] |= 1
    inputs = states(rng, b=rng.standard_normal(3 * D, F32), m=lengths)
    agrees(MHA, inputs, {"y": F32}, num_heads=N, atol=2e-5, rtol=1e-4)


@pytest.mark.slow
def test_multi_head_attention_behind_a_cache(agrees, rng):
    past = [rng.standard_normal((B, N, 4, H), F32) for _ in range(2)]
    bias = rng.standard_normal((B, N, S, S + 4), F32)
    inputs = states(rng, S, _b=bias, _m=bias, bias=bias, pk=past[0], pv=past[1])
    outputs = {"y": F32, "k1": F32, "v1": F32}
    agrees(MHA, inputs, outputs, num_heads=N, unidirectional=1, atol=2e-5, rtol=1e-4)


@pytest.mark.slow
def test_packed_multi_head_attention(agrees, rng):
    """What ONNX Runtime's CPU kernel does not take; the reference is the unpacked operator."""
    q, k, v = (rng.standard_normal((B, S, N, H), F32) for _ in range(3))
    scores = np.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(H)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    expected = np.einsum("bhqk,bkhd->bqhd", weights, v).reshape(B, S, D)
    inputs = {"qkv": np.stack([q, k, v], 3)}
    agrees(
        MHA, inputs, {"y": F32}, num_heads=N, atol=2e-5, rtol=1e-4, expected=[expected.astype(F32)]
    )


def tables(rng, rows=16, half=H // 2):
    angles = rng.standard_normal((rows, half)).astype(F32)
    return np.cos(angles), np.sin(angles)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("partial", [False, True])
@pytest.mark.parametrize("offset", [False, True])
def test_rotary_embedding(agrees, rng, interleaved, partial, offset):
    cos, sin = tables(rng, half=2 if partial else H // 2)
    positions = np.array([3]) if offset else rng.integers(0, 16, (B, S))
    shape = (B, S, D) if partial or offset else (B, N, S, H)
    inputs = {"x": rng.standard_normal(shape, F32), "p": positions, "c": cos, "s": sin}
    attrs = {"interleaved": interleaved}
    attrs |= {"rotary_embedding_dim": 4, "num_heads": N} if partial else {}
    agrees(ROTARY, inputs, {"y": F32}, constants=["c", "s"], **attrs)


def grouped(rng, steps, lengths, past=0, **others):
    cos, sin = tables(rng)
    cache = rng.standard_normal((2, B, 2, past, H), F32)
    return {
        "q": rng.standard_normal((B, steps, 4 * H), F32),
        "k": rng.standard_normal((B, steps, 2 * H), F32),
        "v": rng.standard_normal((B, steps, 2 * H), F32),
        ("pk" if past else "_pk"): cache[0],
        ("pv" if past else "_pv"): cache[1],
        "lengths": np.array(lengths, "int32") - 1,
        "total": np.array(past + steps, "int32"),
        "c": cos,
        "s": sin,
        **others,
    }


@pytest.mark.slow
@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize("window", [-1, 3])
def test_grouped_queries_of_a_prompt(agrees, rng, window):
    attrs = {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1, "local_window_size": window}
    agrees(GQA, grouped(rng, S, [S, S]), {"y": F32, "k1": F32, "v1": F32},
           constants=["total", "c", "s"], atol=2e-5, rtol=1e-4, **attrs)  # fmt: skip


@pytest.mark.slow
def test_grouped_queries_behind_a_cache(agrees, rng):
    attrs = {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1, "rotary_interleaved": 1}
    agrees(GQA, grouped(rng, 1, [7, 7], 6), {"y": F32, "k1": F32, "v1": F32},
           constants=["total", "c", "s"], atol=2e-5, rtol=1e-4, **attrs)  # fmt: skip


@pytest.mark.slow
def test_rows_of_their_own_lengths_behind_a_cache(agrees, rng):
    attrs = {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1}
    agrees(GQA, grouped(rng, 1, [7, 4], 6), {"y": F32, "k1": F32, "v1": F32},
           constants=["total", "c", "s"], atol=2e-5, rtol=1e-4, **attrs)  # fmt: skip


def test_a_cache_that_may_be_a_buffer_is_refused(agrees, rng):
    from tvm_fusion.errors import UserError

    attrs = {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1}
    with pytest.raises(UserError, match="give it a constant total_sequence_length"):
        agrees(GQA, grouped(rng, 1, [7, 4], 6), {"y": F32}, constants=["c", "s"], **attrs)
