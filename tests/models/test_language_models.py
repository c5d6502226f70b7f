"""Language models of transformers in sessions: logits and greedy tokens are those of PyTorch."""

import numpy as np
import pytest

import tvm_fusion
from tvm_fusion.config import FusionConfig
from tvm_fusion.errors import UserError
from tvm_fusion.frontend.functions import import_models

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="5.24")
pytestmark = pytest.mark.torch

VOCABULARY, LENGTH, PROMPT, GENERATED = 101, 96, 21, 64
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 76,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2}
BOTH_KINDS = {
    "head_dim": 12,
    "sliding_window": 8,
    "layer_types": ["sliding_attention", "full_attention"],
}
LATENT = {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 12,
    "num_key_value_heads": 4,
}
DECODERS = {
    "Llama": {},
    "Qwen3": {"head_dim": 12},
    "Mistral": {"sliding_window": 8},
    "Gemma2": BOTH_KINDS,
    "Gemma3": BOTH_KINDS,
    "Phi3": {},
    "GPT2": {"n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 128, "n_inner": 76},
    "Mixtral": {"num_local_experts": 4},
    "Qwen3Moe": {**EXPERTS, "moe_intermediate_size": 40, "head_dim": 12},
    "GptOss": {**BOTH_KINDS, "num_local_experts": 4},
    "DeepseekV3": {
        **LATENT,
        "moe_intermediate_size": 40,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_group": 2,
        "topk_group": 1,
        "first_k_dense_replace": 1,
    },
    "Mamba2": {
        "state_size": 8,
        "conv_kernel": 4,
        "expand": 2,
        "num_heads": 8,
        "head_dim": 12,
        "n_groups": 2,
        "chunk_size": 8,
    },
    "Jamba": {
        **EXPERTS,
        "mamba_d_state": 8,
        "mamba_dt_rank": 4,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
    },
}


REFUSED = {
    "RecurrentGemma": (
        {
            "lru_width": 48,
            "head_dim": 12,
            "attention_window_size": 8,
            "block_types": ["recurrent", "attention"],
        },
        r"keeps states in its modules \(model.layers.0.temporal_block.conv1d_state\); expected",
    ),
    "GPTNeo": (
        {
            "num_layers": 2,
            "num_heads": 4,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 8,
        },
        "logits of GPTNeoForCausalLM with a cache of fixed size are off by [0-9]+% of their range",
    ),
    "Mpt": (
        {"d_model": 48, "n_heads": 4, "n_layers": 2, "max_seq_len": 128},
        r"MptForCausalLM fails with a cache of fixed size \(The size of tensor a",
    ),
}


def decoder(kind, **sizes):
    head = "LMHeadModel" if kind == "GPT2" else "ForCausalLM"
    model = getattr(transformers, kind + head)
    config = model.config_class(**{**SIZES, **DECODERS.get(kind, {}), **sizes})
    return drawn(model(config))


def drawn(model):
    """Draw weights large enough that each token depends on those before it."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(3)
    return model.eval()


def compiled(programs):
    return tvm_fusion.load(
        tvm_fusion.compile(programs, in_place=programs.caches, rewrite="none")
    ).session()


def generated(session, logits):
    """Return all tokens of greedy search, and the logits of each and of one more."""
    tokens, found = [], [logits]
    for _ in range(GENERATED):
        tokens.append(found[-1].argmax(-1)[:, None])
        found.append(session.decode(tokens[-1])["logits"])
    return np.concatenate(tokens, 1), np.stack(found, 1)


def assert_eager(found, tokens, expected):
    """Compare logits with those of one call on all tokens."""
    want = expected.numpy()[:, -found.shape[1] :]
    np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-4 * np.abs(want).max())
    np.testing.assert_array_equal(tokens, want[:, :-1].argmax(-1))


@pytest.mark.parametrize("kind", DECODERS)
def test_a_decoder_generates_what_eager_does(kind):
    model = decoder(kind)
    session = compiled(tvm_fusion.models.causal_lm(model, LENGTH, chunk=16))
    ids = np.random.default_rng().integers(3, VOCABULARY, (1, PROMPT))
    tokens, logits = generated(session, session.prefill(ids)["logits"])
    assert session.length == PROMPT + GENERATED
    whole = torch.from_numpy(np.concatenate([ids, tokens], 1))
    with torch.no_grad():
        assert_eager(logits, tokens, model(input_ids=whole, use_cache=False).logits)


@pytest.mark.parametrize(("dtype", "least"), [("int8", 0.02), ("float8_e4m3fn", 0.15)])
def test_keys_and_values_of_a_byte(dtype, least):
    """Logits are off by what rounding makes of keys and values."""
    model = decoder("Llama")
    programs = tvm_fusion.models.causal_lm(model, LENGTH, chunk=16, cache_dtype=dtype)
    assert programs.caches[:4] == ("keys_0", "values_0", "key_scales_0", "value_scales_0")
    session = compiled(programs)
    ids = np.random.default_rng().integers(3, VOCABULARY, (1, PROMPT))
    logits = [session.prefill(ids[:, :-2])["logits"]]
    logits += [session.decode(ids[:, n : n + 1])["logits"] for n in (PROMPT - 2, PROMPT - 1)]
    with torch.no_grad():
        expected = model(input_ids=torch.from_numpy(ids), use_cache=False).logits.numpy()
    found, want = np.stack(logits, 1), expected[:, -3:]
    assert 0 < np.abs(found - want).max() <= least * np.abs(want).max()


def test_greedy_programs_return_the_next_token():
    model = decoder("Llama")
    session = compiled(tvm_fusion.models.causal_lm(model, LENGTH, chunk=16, greedy=True))
    ids = np.random.default_rng().integers(3, VOCABULARY, (1, PROMPT))
    tokens = [session.prefill(ids)["token"]]
    for _ in range(8):
        tokens.append(session.decode(tokens[-1])["token"])
    whole = torch.from_numpy(np.concatenate([ids, *tokens], 1))
    with torch.no_grad():
        expected = model(input_ids=whole, use_cache=False).logits.numpy().argmax(-1)
    np.testing.assert_array_equal(whole[:, PROMPT:].numpy(), expected[:, PROMPT - 1 : -1])


def test_a_bias_by_position_covers_the_cache():
    """ALiBi, which Falcon makes as long as its mask, is as long as the cache."""
    model = decoder("Falcon", multi_query=True, alibi=True, new_decoder_architecture=False)
    step = tvm_fusion.models.causal_lm(model, 16, chunk=4)["prefill"].module()
    ids = torch.randint(3, VOCABULARY, (1, 7))
    with torch.no_grad():
        step(input_ids=ids[:, :4], position=torch.tensor([0]))
        found = step(input_ids=ids[:, 4:], position=torch.tensor([4]))["logits"]
        expected = model(input_ids=ids, use_cache=False).logits[:, -1]
    torch.testing.assert_close(found, expected)


def test_another_type_of_cache_is_one_sentence():
    with pytest.raises(UserError, match="cache_dtype 'int4'; expected one of int8, float8_e4m3fn"):
        tvm_fusion.models.causal_lm(decoder("Llama"), LENGTH, cache_dtype="int4")


def test_one_token_attends_to_latents():
    """No step multiplies all positions of the cache by the matrix that expands them."""
    model = decoder("DeepseekV3")
    programs = tvm_fusion.models.causal_lm(model, LENGTH, chunk=16)
    places = {name: _largest_product(programs[name]) for name in ("decode", "prefill")}
    assert places["decode"] < LENGTH <= places["prefill"]
    assert not any("expand_kv" in vars(module) for module in model.modules())
    assert model.config._attn_implementation == "sdpa"


def _largest_product(program):
    """Rows of the largest product with a weight, of fixed sizes."""
    weights = [
        n for n in program.graph.nodes if n.op == "call_function" and "linear" in str(n.target)
    ]
    shapes = [n.args[0].meta["val"].shape for n in weights]
    return max(rows for *_, rows, _ in shapes if isinstance(rows, int))


def t5():
    config = transformers.T5Config(
        vocab_size=VOCABULARY, d_model=48, d_kv=12, d_ff=76, num_layers=2, num_decoder_layers=3,
        num_heads=4, decoder_start_token_id=0,
    )  # fmt: skip
    ids = torch.randint(2, VOCABULARY, (2, 9))
    mask = torch.ones_like(ids)
    mask[1, 6:] = 0
    model = drawn(transformers.T5ForConditionalGeneration(config))
    return model, 9, {"input_ids": ids, "attention_mask": mask}


def whisper():
    config = transformers.WhisperConfig(
        vocab_size=VOCABULARY, d_model=48, encoder_layers=2, decoder_layers=3, num_mel_bins=8,
        encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=76,
        decoder_ffn_dim=76, max_source_positions=12, max_target_positions=LENGTH, pad_token_id=0,
        bos_token_id=0, eos_token_id=1, decoder_start_token_id=0,
    )  # fmt: skip
    model = drawn(transformers.WhisperForConditionalGeneration(config))
    return model, None, {"input_features": torch.randn(2, 8, 24)}


@pytest.mark.parametrize("make", [t5, whisper])
def test_an_encoder_and_decoder_generate_what_eager_does(make):
    model, length, source = make()
    session = compiled(tvm_fusion.models.seq2seq_lm(model, LENGTH, length, batch=2, chunk=8))
    states = session.encode(**{name: value.numpy() for name, value in source.items()})
    assert session.length == 0
    with torch.no_grad():
        hidden = model.get_encoder()(**source).last_hidden_state.numpy()
    np.testing.assert_allclose(states["encoder_states"], hidden, rtol=1e-4, atol=1e-4)
    ids = np.random.default_rng().integers(3, VOCABULARY, (2, 11))
    tokens, logits = generated(session, session.prefill(ids)["logits"])
    whole = torch.from_numpy(np.concatenate([ids, tokens], 1))
    with torch.no_grad():
        expected = model(decoder_input_ids=whole, use_cache=False, **source).logits
    assert_eager(logits, tokens, expected)


@pytest.mark.filterwarnings("ignore:While compiling, we found certain side effects")
def test_strict_export_gives_the_same_functions():
    model = decoder("Mistral", num_hidden_layers=1)
    found = []
    for strict in (False, True):
        programs = tvm_fusion.models.causal_lm(model, 16, chunk=4, strict=strict)
        imported = import_models(programs, FusionConfig())
        found.append(imported.signatures)
    for name in ("prefill", "decode"):
        loose, strict = (signatures[name] for signatures in found)
        assert (loose.inputs, loose.outputs) == (strict.inputs, strict.outputs)
        assert {"keys_0", "values_0"} <= {s.name for s in strict.outputs}


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (lambda: torch.nn.Linear(2, 2), {}, "a model of type Linear; expected a model of transf"),
        (lambda: decoder("Llama").model, {}, "a model of type LlamaModel; expected a model of"),
        (lambda: decoder("Llama").train(), {}, "training mode; expected evaluation mode; call"),
        (lambda: t5()[0], {}, "T5ForConditionalGeneration, which has an encoder and a decoder"),
        (lambda: decoder("Llama"), {"max_length": 129}, "max_length 129 of a model of 128 pos"),
        (
            lambda: decoder("Llama"),
            {"max_length": 2.5},
            "max_length is 2.5; expected a whole number",
        ),
        (lambda: decoder("Llama"), {"batch": 0}, "batch is 0; expected a whole number from 1"),
        (lambda: decoder("Llama"), {"chunk": 1}, "chunk is 1; expected a whole number from 3"),
    ],
)
@pytest.mark.every_case
def test_what_a_decoder_cannot_be(make, options, message):
    with pytest.raises(UserError, match=message):
        tvm_fusion.models.causal_lm(make(), **{"max_length": 16, **options})


@pytest.mark.parametrize("kind", REFUSED)
def test_a_model_that_a_cache_of_fixed_size_breaks(kind):
    """What transformers itself computes wrongly over one is not exported."""
    sizes, message = REFUSED[kind]
    with pytest.raises(UserError, match=message):
        tvm_fusion.models.causal_lm(decoder(kind, **sizes), LENGTH, chunk=8)


def test_a_decoder_alone_has_no_encoder():
    with pytest.raises(UserError, match="LlamaForCausalLM, which has a decoder alone; expected"):
        tvm_fusion.models.seq2seq_lm(decoder("Llama"), 16)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "workers"), [("Llama", 2), ("Mixtral", 2), ("Llama", 4)])
def test_several_workers(kind, workers):
    """Logits of prefill and decode are those of one process, caches split by heads."""
    sizes = {"num_key_value_heads": 4, "num_hidden_layers": 1, "intermediate_size": 80}
    programs = tvm_fusion.models.causal_lm(decoder(kind, vocab_size=104, **sizes), LENGTH)
    options = {"in_place": programs.caches, "rewrite": "none"}
    one = tvm_fusion.load(tvm_fusion.compile(programs, **options)).session()
    split = {"workers": workers, "shards": {"*": "split"}}
    several = tvm_fusion.load(tvm_fusion.compile(programs, **options, **split))
    session = several.session()
    assert session.caches["keys_0"].shape[1] == 4 // workers
    ids = np.random.default_rng().integers(0, VOCABULARY, (1, PROMPT))
    found, want = session.prefill(ids)["logits"], one.prefill(ids)["logits"]
    for _ in range(8):
        scale = np.abs(want).max()
        np.testing.assert_allclose(found, want, rtol=0, atol=1e-6 * max(1, scale))
        token = want.argmax(-1)[:, None]
        found, want = session.decode(token)["logits"], one.decode(token)["logits"]
    several.close()
