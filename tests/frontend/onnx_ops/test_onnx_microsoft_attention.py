"""Attention operators of ONNX Runtime against ONNX Runtime."""

import numpy as np
import pytest
from onnx import helper

import tvm_fusion
from tvm_fusion.config import FusionConfig
from tvm_fusion.errors import UserError
from tvm_fusion.frontend import import_model

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


#: New tokens, lengths of the rows with them, places of the cache, attributes, further inputs.
CACHED = {
    "one token into a buffer": (1, [7], 12, {}, ()),
    "a chunk into a buffer": (3, [9], 12, {"local_window_size": 4}, ()),
    "a prompt into a buffer": (5, [5], 12, {}, ()),
    "rows of their own lengths": (1, [7, 4], 12, {}, ()),
    "a chunk behind a cache that grows": (3, [9], 6, {}, ("position", "bias")),
    "bounded scores of a packed tensor": (3, [9], 12, {"softcap": 2.0}, ("packed",)),
    "smooth softmax": (1, [9], 12, {"smooth_softmax": 1}, ()),
    "sinks": (3, [9], 12, {}, ("sinks",)),
}


def cached(rng, steps, lengths, places, more):
    """Inputs behind a cache that is a buffer where it has places for all tokens."""
    inputs = grouped(rng, steps, lengths, places)
    if len(lengths) == 1:
        inputs |= {n: inputs[n][:1] for n in ("q", "k", "v", "pk", "pv")}
    inputs["total"] = np.array(max(lengths), "int32")
    if "packed" in more:
        qkv = np.concatenate([inputs[n] for n in "qkv"], 2)
        rest = [(n, a) for n, a in inputs.items() if n not in ("q", "k", "v")]
        inputs = dict([("q", qkv), ("_k", qkv), ("_v", qkv), *rest])
    batch = len(lengths)
    given = "position" in more
    inputs["p" if given else "_p"] = rng.integers(0, 16, (batch, steps))
    inputs["b" if "bias" in more else "_b"] = rng.standard_normal((batch, 1, steps, 9), F32)
    inputs["sinks" if "sinks" in more else "_sinks"] = rng.standard_normal(4).astype(F32)
    return inputs


@pytest.mark.slow_beyond(2)
@pytest.mark.parametrize("case", CACHED)
def test_grouped_queries_with_a_cache(rng, case, onnx_model, onnxruntime_run, run):
    """Of a buffer, what ONNX Runtime has behind the last token of a row is left to it."""
    steps, lengths, places, attrs, more = CACHED[case]
    inputs = cached(rng, steps, lengths, places, more)
    fed = {n: a for n, a in inputs.items() if not n.startswith("_") and n not in "cs"}
    weights = {n: inputs[n] for n in "cs" if n in inputs}
    node = helper.make_node(
        "GroupQueryAttention", ["" if n.startswith("_") else n for n in inputs], ["y", "k1", "v1"],
        domain="com.microsoft", num_heads=4, kv_num_heads=2, do_rotary=1, **attrs,
    )  # fmt: skip
    model = onnx_model(
        [node],
        {n: (a.dtype.name, list(a.shape)) for n, a in fed.items()},
        {n: (F32, None) for n in ("y", "k1", "v1")},
        weights,
        domains=["com.microsoft"],
    )
    expected = onnxruntime_run(model, **fed)
    is_buffer = places >= max(lengths)
    constant = {} if is_buffer else {"total": fed.pop("total")}
    found = run(import_model(model, FusionConfig(constants=constant)).mod, *fed.values())
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-4, atol=2e-5)
    for own, other in zip(found[1:], expected[1:], strict=True):
        assert own.shape == other.shape
        for row, length in enumerate(lengths):
            np.testing.assert_allclose(own[row, :, :length], other[row, :, :length], atol=2e-5)


@pytest.mark.slow
def test_a_symbolic_cache_grows(rng, onnx_model, onnxruntime_run):
    inputs = cached(rng, 3, [9], 6, ())
    names = ["q", "k", "v", "pk", "pv", "lengths", "total", "c", "s"]
    given = dict(zip(names, [*list(inputs.values())[:7], *tables(rng)], strict=True))
    fed = {n: a for n, a in given.items() if n not in "cs"}
    node = helper.make_node(
        "GroupQueryAttention", names, ["y", "k1", "v1"],
        domain="com.microsoft", num_heads=4, kv_num_heads=2, do_rotary=1,
    )  # fmt: skip
    shapes = {n: list(a.shape) for n, a in fed.items()}
    for name, axis, dim in [
        *((n, 1, "steps") for n in "qkv"),
        *((n, 2, "past") for n in ("pk", "pv")),
    ]:
        shapes[name][axis] = dim
    model = onnx_model(
        [node],
        {n: (a.dtype.name, shapes[n]) for n, a in fed.items()},
        {n: (F32, None) for n in ("y", "k1", "v1")},
        {n: given[n] for n in "cs"},
        domains=["com.microsoft"],
    )
    expected = onnxruntime_run(model, **fed)
    dims = {"past": tvm_fusion.DimRange(1, 16), "steps": tvm_fusion.DimRange(1, 8)}
    exe = tvm_fusion.load(tvm_fusion.compile(model, target="cpu", dims=dims))
    for own, other in zip(exe(**fed).values(), expected, strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-4, atol=2e-5)


def test_a_total_length_that_fits_no_cache_is_refused(agrees, rng):
    attrs = {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1}
    inputs = grouped(rng, 1, [7, 4], 6) | {"total": np.array(9, "int32")}
    sentence = "of a cache of 6 places and total_sequence_length 9.*at most 6 for a buffer, or 7"
    with pytest.raises(UserError, match=sentence):
        agrees(GQA, inputs, {"y": F32, "k1": F32, "v1": F32},
               constants=["total", "c", "s"], **attrs)  # fmt: skip


def test_a_bias_that_does_not_cover_a_buffer_is_refused(agrees, rng):
    inputs = cached(rng, 3, [9], 12, ("bias",))
    with pytest.raises(UserError, match=r"whose bias is of 9 keys and its cache of 12.*12"):
        agrees(GQA, inputs, {"y": F32, "k1": F32, "v1": F32}, constants=["total", "c"],
               num_heads=4, kv_num_heads=2, do_rotary=1)  # fmt: skip
