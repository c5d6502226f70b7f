"""Decoders of text, whole sequences and single steps with a cache."""

from typing import Any

import torch
import transformers
from torch import Tensor, nn

from .model import SIZES, Example, Spec, ids, pretrained, tokens

_GPT = {"n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 64, "n_inner": 76}
_EXPERTS = {"moe_intermediate_size": 40, "num_experts": 4, "num_experts_per_tok": 2}
_SSM = {"state_size": 8, "conv_kernel": 4, "expand": 2}
_CACHED = 11  # tokens in a cache


class GrowingCache(nn.Module):
    """A decoding step with a cache that grows: keys and values in, longer ones out."""

    def __init__(self, module: nn.Module):
        super().__init__()
        self.module = module

    def forward(self, input_ids: Tensor, **kept: Tensor) -> tuple[Tensor, ...]:
        """Return logits, then all keys and values."""
        given = list(kept.values())
        pairs = list(zip(given[::2], given[1::2], strict=True))
        cache = transformers.DynamicCache(pairs)
        logits = self.module(input_ids=input_ids, past_key_values=cache, use_cache=True).logits
        return (logits, *(x for layer in cache.layers for x in (layer.keys, layer.values)))


class StaticCache(nn.Module):
    """A decoding step with a cache of fixed size, whose buffers are written in place."""

    def __init__(self, module: Any):
        super().__init__()
        self.module = module
        config = module.config
        self.cache = transformers.StaticCache(config=config, max_cache_len=32)
        heads, width = config.num_key_value_heads, config.hidden_size // config.num_attention_heads
        self.cache.early_initialization(2, heads, width, torch.float32, torch.device("cpu"))
        for number, layer in enumerate(self.cache.layers):
            self.register_buffer(f"keys_{number}", torch.randn_like(layer.keys))
            self.register_buffer(f"values_{number}", torch.randn_like(layer.values))

    def forward(self, input_ids: Tensor, position_ids: Tensor) -> Tensor:
        """Return logits; keys and values of the cache are changed."""
        for number, layer in enumerate(self.cache.layers):
            layer.keys = getattr(self, f"keys_{number}")
            layer.values = getattr(self, f"values_{number}")
            layer.cumulative_length = position_ids[0, 0].clone()
        return self.module(
            input_ids=input_ids,
            position_ids=position_ids,
            past_key_values=self.cache,
            use_cache=True,
        ).logits


def _causal(kind: str, **sizes: Any) -> nn.Module:
    model = getattr(transformers, f"{kind}ForCausalLM")
    return model(model.config_class(**{**SIZES, "use_cache": True, **sizes}))


def _growing(kind: str, heads: int = 2, **sizes: Any) -> Spec:
    def build() -> Example:
        kept = {
            f"{name}_{layer}": torch.randn(2, heads, _CACHED, 12)
            for layer in range(2)
            for name in ("key", "value")
        }
        return GrowingCache(_causal(kind, **sizes)), {"input_ids": ids(2, 1), **kept}

    return Spec(build)


def _static(kind: str, **sizes: Any) -> Spec:
    def build() -> Example:
        given = {"input_ids": ids(2, 1), "position_ids": torch.tensor([[_CACHED], [_CACHED]])}
        return StaticCache(_causal(kind, **sizes)), given

    return Spec(build)


MODELS: dict[str, Spec] = {
    "gpt2": pretrained("GPT2LMHeadModel", tokens, **_GPT),
    "gpt_neo": pretrained(
        "GPTNeoForCausalLM",
        tokens,
        num_layers=2,
        num_heads=4,
        attention_types=[[["global", "local"], 1]],
        window_size=8,
    ),
    "gpt_neox": pretrained("GPTNeoXForCausalLM", tokens),
    "gptj": pretrained("GPTJForCausalLM", tokens, **_GPT, rotary_dim=4),
    "codegen": pretrained("CodeGenForCausalLM", tokens, **_GPT, rotary_dim=4),
    "gpt_bigcode": pretrained("GPTBigCodeForCausalLM", tokens, **_GPT),
    "llama": pretrained("LlamaForCausalLM", tokens),
    "mistral": pretrained("MistralForCausalLM", tokens, sliding_window=8),
    "mixtral": pretrained("MixtralForCausalLM", tokens, num_local_experts=4),
    "qwen2": pretrained("Qwen2ForCausalLM", tokens),
    "qwen2_moe": pretrained(
        "Qwen2MoeForCausalLM", tokens, **_EXPERTS, shared_expert_intermediate_size=40
    ),
    "qwen3": pretrained("Qwen3ForCausalLM", tokens, head_dim=12),
    "qwen3_moe": pretrained("Qwen3MoeForCausalLM", tokens, **_EXPERTS, head_dim=12),
    "gemma": pretrained("GemmaForCausalLM", tokens, head_dim=12),
    "gemma2": pretrained("Gemma2ForCausalLM", tokens, head_dim=12, sliding_window=8),
    "gemma3": pretrained("Gemma3ForCausalLM", tokens, head_dim=12, sliding_window=8),
    "phi": pretrained("PhiForCausalLM", tokens),
    "phi3": pretrained("Phi3ForCausalLM", tokens),
    "falcon": pretrained("FalconForCausalLM", tokens),
    "bloom": pretrained("BloomForCausalLM", tokens, n_layer=2, n_head=4),
    "opt": pretrained("OPTForCausalLM", tokens, ffn_dim=76, word_embed_proj_dim=48),
    "mpt": pretrained("MptForCausalLM", tokens, d_model=48, n_heads=4, n_layers=2, max_seq_len=64),
    "stablelm": pretrained("StableLmForCausalLM", tokens, partial_rotary_factor=0.5),
    "olmo": pretrained("OlmoForCausalLM", tokens),
    "olmo2": pretrained("Olmo2ForCausalLM", tokens),
    "olmoe": pretrained("OlmoeForCausalLM", tokens, num_experts=4, num_experts_per_tok=2),
    "granite": pretrained("GraniteForCausalLM", tokens),
    "cohere": pretrained("CohereForCausalLM", tokens),
    "starcoder2": pretrained("Starcoder2ForCausalLM", tokens),
    "deepseek_v3": pretrained(
        "DeepseekV3ForCausalLM",
        tokens,
        moe_intermediate_size=40,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_group=2,
        topk_group=1,
        first_k_dense_replace=1,
        q_lora_rank=16,
        kv_lora_rank=16,
        qk_rope_head_dim=8,
        qk_nope_head_dim=8,
        v_head_dim=12,
        num_key_value_heads=4,
    ),
    "gpt_oss": pretrained(
        "GptOssForCausalLM", tokens, num_local_experts=4, head_dim=12, sliding_window=8
    ),
    "mamba": pretrained("MambaForCausalLM", tokens, **_SSM, time_step_rank=4),
    "mamba2": pretrained(
        "Mamba2ForCausalLM", tokens, **_SSM, num_heads=8, head_dim=12, n_groups=2, chunk_size=8
    ),
    "rwkv": pretrained("RwkvForCausalLM", tokens, attention_hidden_size=48, context_length=32),
    "recurrent_gemma": pretrained(
        "RecurrentGemmaForCausalLM",
        tokens,
        num_hidden_layers=3,
        lru_width=48,
        attention_window_size=8,
        head_dim=12,
    ),
    "llama, growing cache": _growing("Llama"),
    "gpt_neox, growing cache": _growing("GPTNeoX", heads=4),
    "llama, static cache": _static("Llama"),
    "qwen2, static cache": _static("Qwen2"),
}
