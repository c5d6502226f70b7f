"""Encoder-decoders of text."""

from dataclasses import replace
from typing import Any

from torch import Tensor

from .model import Spec, ids, masked, pretrained

_BART = {
    "d_model": 48,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 76,
    "decoder_ffn_dim": 76,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": None,
}
_T5: dict[str, Any] = {
    "d_model": 48,
    "d_kv": 12,
    "d_ff": 76,
    "num_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
}


def _pair() -> dict[str, Tensor]:
    return {**masked(), "decoder_input_ids": ids(2, 7)}


MODELS: dict[str, Spec] = {
    "t5": pretrained("T5ForConditionalGeneration", _pair, "logits", **_T5),
    "umt5": pretrained("UMT5ForConditionalGeneration", _pair, "logits", **_T5),
    "longt5": pretrained(
        "LongT5ForConditionalGeneration",
        _pair,
        "logits",
        **_T5,
        local_radius=3,
        encoder_attention_type="local",
    ),
    "switch_transformers": pretrained(
        "SwitchTransformersForConditionalGeneration",
        _pair,
        "logits",
        **_T5,
        num_experts=4,
        num_sparse_encoder_layers=1,
        num_sparse_decoder_layers=1,
        expert_capacity=26,
    ),
    "bart": pretrained("BartForConditionalGeneration", _pair, "logits", **_BART),
    "mbart": pretrained("MBartForConditionalGeneration", _pair, "logits", **_BART),
    "marian": pretrained("MarianMTModel", _pair, "logits", **_BART),
    "pegasus": pretrained("PegasusForConditionalGeneration", _pair, "logits", **_BART),
    "m2m_100": pretrained("M2M100ForConditionalGeneration", _pair, "logits", **_BART),
    "blenderbot": pretrained("BlenderbotForConditionalGeneration", _pair, "logits", **_BART),
    "led": replace(
        pretrained(
            "LEDForConditionalGeneration",
            _pair,
            "logits",
            **_BART,
            attention_window=8,
            max_encoder_position_embeddings=64,
            max_decoder_position_embeddings=64,
        ),
        is_draft=True,  # without global attention
    ),
    "prophetnet": pretrained(
        "ProphetNetForConditionalGeneration",
        _pair,
        "logits",
        num_hidden_layers=None,
        num_encoder_layers=2,
        num_decoder_layers=2,
        num_encoder_attention_heads=4,
        num_decoder_attention_heads=4,
        encoder_ffn_dim=76,
        decoder_ffn_dim=76,
        ngram=2,
    ),
}
