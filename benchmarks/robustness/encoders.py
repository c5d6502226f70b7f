"""Encoders of text."""

from dataclasses import replace

from .model import Spec, masked, pretrained, tokens

_FUNNEL = {
    "num_hidden_layers": None,
    "block_sizes": [1, 1],
    "num_decoder_layers": 1,
    "d_model": 48,
    "n_head": 4,
    "d_head": 12,
    "d_inner": 76,
}

MODELS: dict[str, Spec] = {
    "bert": pretrained("BertModel", masked),
    "roberta": pretrained("RobertaForMaskedLM", masked),
    "distilbert": pretrained(
        "DistilBertModel", masked, dim=48, n_layers=2, n_heads=4, hidden_dim=76
    ),
    "deberta": pretrained(
        "DebertaModel", masked, relative_attention=True, pos_att_type=["c2p", "p2c"]
    ),
    "deberta_v2": pretrained(
        "DebertaV2Model", masked, relative_attention=True, pos_att_type=["c2p", "p2c"]
    ),
    "electra": pretrained("ElectraModel", masked, embedding_size=32),
    "albert": pretrained("AlbertModel", masked, embedding_size=32),
    "mpnet": pretrained("MPNetModel", masked),
    "funnel": pretrained("FunnelModel", masked, **_FUNNEL),
    "longformer": replace(
        pretrained("LongformerModel", masked, attention_window=8),
        is_draft=True,  # without global attention
    ),
    "big_bird": pretrained("BigBirdModel", masked, attention_type="original_full"),
    "xlnet": pretrained(
        "XLNetModel",
        tokens,
        max_position_embeddings=None,
        d_model=48,
        n_layer=2,
        n_head=4,
        d_inner=76,
    ),
    "modernbert": pretrained(
        "ModernBertModel", masked, local_attention=8, global_attn_every_n_layers=2
    ),
    "squeezebert": pretrained("SqueezeBertModel", masked, embedding_size=48),
    "mobilebert": pretrained(
        "MobileBertModel", masked, embedding_size=32, intra_bottleneck_size=32, true_hidden_size=32
    ),
    "convbert": pretrained(
        "ConvBertModel", masked, embedding_size=32, conv_kernel_size=3, head_ratio=2
    ),
    "fnet": pretrained("FNetModel", tokens),
    "nystromformer": pretrained(
        "NystromformerModel", masked, num_landmarks=13, segment_means_seq_len=13
    ),
    "esm": pretrained("EsmModel", masked, position_embedding_type="rotary", token_dropout=False),
    "layoutlm": pretrained("LayoutLMModel", masked, max_2d_position_embeddings=64),
}
