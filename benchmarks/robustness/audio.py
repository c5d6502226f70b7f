"""Models of sound, and of time series."""

from typing import Any

import torch
import transformers
from torch import Tensor, nn

from .model import SIZES, Example, Spec, ids, pretrained

_WAVES = {
    "conv_dim": [16, 16, 24],
    "conv_stride": [5, 2, 2],
    "conv_kernel": [10, 3, 3],
    "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
    "num_buckets": 16,
    "max_bucket_distance": 32,
}
_WHISPER = {
    "d_model": 48,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 76,
    "decoder_ffn_dim": 76,
    "num_mel_bins": 16,
    "max_source_positions": 30,
    "max_target_positions": 32,
    "decoder_start_token_id": 1,
    "suppress_tokens": [],
    "begin_suppress_tokens": [],
}


def _waves() -> dict[str, Tensor]:
    return {"input_values": torch.randn(2, 701)}


def _spectrum() -> Tensor:
    return torch.randn(2, 16, 60)


def _whisper() -> dict[str, Tensor]:
    return {"input_features": _spectrum(), "decoder_input_ids": ids(2, 7)}


def _whisper_encoder() -> Example:
    config = transformers.WhisperConfig(**{**SIZES, **_WHISPER})
    return transformers.WhisperModel(config).encoder, {"input_features": _spectrum()}


class _Codec(nn.Module):
    """A codec's encoder and decoder, without the codebooks between them."""

    def __init__(self, module: transformers.EncodecModel):
        super().__init__()
        self.module = module

    def forward(self, input_values: Tensor) -> Tensor:
        """Return the waves that come out."""
        return self.module.decoder(self.module.encoder(input_values))


def _encodec() -> Example:
    config = transformers.EncodecConfig(
        num_filters=8, hidden_size=16, codebook_dim=16, codebook_size=32, upsampling_ratios=[4, 2]
    )
    module = transformers.EncodecModel(config)
    for part in module.modules():
        if hasattr(part, "_get_extra_padding_for_conv1d"):
            _pad_by_numbers(part)
    return _Codec(module), {"input_values": torch.randn(1, 1, 203)}


def _pad_by_numbers(conv: Any) -> None:
    """Compute a convolution's padding in numbers.

    Its own computes it in tensors and branches on them, which ``torch.export`` refuses.
    """
    sizes = {name: buffer.item() for name, buffer in conv.named_buffers(recurse=False)}
    for name, size in sizes.items():
        delattr(conv, name)
        setattr(conv, name, size)

    def extra_padding(hidden_states: Tensor) -> int:
        length = hidden_states.shape[-1]
        rest = length - sizes["kernel_size"] + sizes["padding_total"]
        return -rest % sizes["stride"]

    conv._get_extra_padding_for_conv1d = extra_padding


def _vits() -> Example:
    config = transformers.VitsConfig(
        vocab_size=38,
        hidden_size=16,
        num_hidden_layers=2,
        ffn_dim=32,
        flow_size=16,
        spectrogram_bins=9,
        upsample_initial_channel=32,
        upsample_rates=[2, 2],
        upsample_kernel_sizes=[4, 4],
        resblock_kernel_sizes=[3],
        resblock_dilation_sizes=[[1, 3]],
    )
    decoder = transformers.VitsModel(config).decoder
    return decoder, {"spectrogram": torch.randn(1, 16, 23)}


def _patchtst() -> Example:
    config = transformers.PatchTSTConfig(
        num_input_channels=3,
        context_length=32,
        patch_length=8,
        patch_stride=8,
        prediction_length=8,
        d_model=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        ffn_dim=48,
    )
    return transformers.PatchTSTForPrediction(config), {"past_values": torch.randn(2, 32, 3)}


def _patchtsmixer() -> Example:
    config = transformers.PatchTSMixerConfig(
        num_input_channels=3,
        context_length=32,
        patch_length=8,
        patch_stride=8,
        prediction_length=8,
        d_model=32,
        num_layers=2,
    )
    return transformers.PatchTSMixerForPrediction(config), {"past_values": torch.randn(2, 32, 3)}


def _autoformer() -> Example:
    config = transformers.InformerConfig(
        prediction_length=6,
        context_length=14,
        input_size=1,
        lags_sequence=[1, 2, 3],
        num_time_features=2,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        use_cache=False,
    )
    config = transformers.TimeSeriesTransformerConfig(
        **{k: v for k, v in config.to_dict().items() if k != "model_type"}
    )
    given = {
        "past_values": torch.randn(2, 17),
        "past_time_features": torch.randn(2, 17, 2),
        "past_observed_mask": torch.ones(2, 17),
        "future_values": torch.randn(2, 6),
        "future_time_features": torch.randn(2, 6, 2),
    }
    return transformers.TimeSeriesTransformerModel(config), given


MODELS: dict[str, Spec] = {
    "wav2vec2": pretrained("Wav2Vec2ForCTC", _waves, **_WAVES),
    "hubert": pretrained("HubertModel", _waves, **_WAVES),
    "wavlm": pretrained("WavLMModel", _waves, **_WAVES),
    "whisper": pretrained("WhisperForConditionalGeneration", _whisper, "logits", **_WHISPER),
    "whisper encoder": Spec(_whisper_encoder, ("last_hidden_state",)),
    "audio_spectrogram_transformer": pretrained(
        "ASTForAudioClassification",
        lambda: {"input_values": torch.randn(2, 40, 16)},
        patch_size=8,
        frequency_stride=4,
        time_stride=4,
        max_length=40,
        num_mel_bins=16,
        num_labels=7,
    ),
    "encodec": Spec(_encodec),
    "vits decoder": Spec(_vits),
    "patchtst": Spec(_patchtst, ("prediction_outputs",)),
    "patchtsmixer": Spec(_patchtsmixer, ("prediction_outputs",)),
    "time_series_transformer": Spec(_autoformer, ("last_hidden_state",)),
}
