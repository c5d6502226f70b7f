"""Architectures at real sizes: widths and lengths of published models, two layers of each kind.

Groups repeat from layer to layer, so that two layers have those of all. Configurations are those
of the classes' defaults, which are a published model's, but for what the table names. Whole models
are made of the same table with more layers, and as many as published in each stage.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from benchmarks.robustness.model import Example, Tensors, ids, pixels

Inputs = Callable[[], dict[str, Tensor]]
DEPTH = 2  # layers of each kind
_QUIET = {"use_cache": False, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


@dataclass(frozen=True)
class Spec:
    """How a model is made."""

    # Takes the number of layers of each kind; returns the module and its inputs by name.
    make: Callable[[int], Example]

    def build(self, depth: int = DEPTH) -> Example:
        """Make the model with a number of layers; with more than two, stages as published."""
        return self.make(depth)


def real(kind: str, inputs: Inputs, part: str = "", layers: str = "", **sizes: Any) -> Spec:
    """Describe a model by the name of its class; ``part`` is an attribute that is taken alone."""

    def make(depth: int) -> Example:
        given = {**dict.fromkeys(layers.split(), depth), **sizes}
        if depth > DEPTH:
            given.pop("depths", None)
            if "layer_types" in given:
                given["layer_types"] = given["layer_types"] * (depth // DEPTH)
        made = getattr(transformers, kind)
        module = made(made.config_class(**given))
        return (getattr(module, part) if part else module), inputs()

    return Spec(make)


def text(length: int, batch: int = 1, **more: Inputs) -> Inputs:
    """Draw token identifiers, and more inputs by name."""
    return lambda: {
        "input_ids": ids(batch, length, vocabulary=8000),
        **{name: draw() for name, draw in more.items()},
    }


def _masked(length: int, batch: int = 1) -> Inputs:
    def mask() -> Tensor:
        kept = torch.ones(batch, length, dtype=torch.int64)
        kept[:, length - 16 :] = 0
        return kept

    return text(length, batch, attention_mask=mask)


def decoder(kind: str, length: int = 512, **sizes: Any) -> Spec:
    """Describe a causal language model."""
    return real(
        f"{kind}ForCausalLM", text(length), layers="num_hidden_layers", **{**_QUIET, **sizes}
    )


def encoder(kind: str, inputs: Inputs | None = None, **sizes: Any) -> Spec:
    """Describe an encoder of tokens; by default of 128, the last 16 of them masked."""
    layers = sizes.pop("layers", "num_hidden_layers")
    return real(f"{kind}Model", inputs or _masked(128), layers=layers, **sizes)


def vision(kind: str, size: int = 224, batch: int = 1, **sizes: Any) -> Spec:
    """Describe a model of images."""
    layers = sizes.pop("layers", "num_hidden_layers")
    return real(f"{kind}Model", pixels(batch, 3, size, size), layers=layers, **sizes)


def _whisper_decoder(length: int) -> Spec:
    def make(depth: int) -> Example:
        config = transformers.WhisperConfig(
            d_model=768,
            decoder_layers=depth,
            decoder_attention_heads=12,
            decoder_ffn_dim=3072,
            use_cache=False,
        )
        given = {"encoder_hidden_states": torch.randn(1, 1500, 768)}
        return transformers.WhisperModel(config).decoder, {**text(length)(), **given}

    return Spec(make)


def _sam_encoder() -> Spec:
    """SAM's image encoder at 512 by 512 pixels: a layer of windows, one of the whole image."""

    def make(depth: int) -> Example:
        whole = [*range(1, depth, 2)]
        config = transformers.SamVisionConfig(
            image_size=512, num_hidden_layers=depth, global_attn_indexes=whole
        )
        return transformers.SamVisionModel(config), pixels(1, 3, 512, 512)()

    return Spec(make)


def sound(kind: str) -> Spec:
    """Describe an encoder of two seconds of sound."""
    return real(
        f"{kind}Model", lambda: {"input_values": torch.randn(1, 32000)}, layers="num_hidden_layers"
    )


_LLAMA = {
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "tie_word_embeddings": True,
}
_GEMMA = {
    "hidden_size": 1152,
    "intermediate_size": 6912,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "vocab_size": 32000,
    "sliding_window": 256,
    "layer_types": ["sliding_attention", "full_attention"],
}
_QWEN = {
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 32000,
}
_SMALL = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_attention_heads": 16,
    "vocab_size": 32000,
}
_STAGES: Mapping[str, Any] = {"depths": [2, 2, 2, 2], "layers": ""}

MODELS: dict[str, Spec] = {
    "llama_1b": decoder("Llama", **_LLAMA),
    "gemma3_1b": decoder("Gemma3", **_GEMMA),
    "qwen3_0.6b": decoder("Qwen3", **_QWEN),
    "bert": encoder("Bert"),
    "sam_encoder": _sam_encoder(),
    "whisper_decoder": _whisper_decoder(64),
    "convnextv2": vision("ConvNextV2", **_STAGES),
    "swin": vision("Swin", **_STAGES),
    "segformer": vision("Segformer", 512, layers="", depths=[1, 1, 1, 1]),
    "mistral": decoder("Mistral", **{**_QWEN, "hidden_size": 2048, "sliding_window": 256}),
    "qwen2": decoder("Qwen2", hidden_size=896, num_attention_heads=14, num_key_value_heads=2,
                      intermediate_size=4864, vocab_size=32000),
    "gemma2": decoder("Gemma2", **{**_GEMMA, "num_key_value_heads": 2, "head_dim": 256}),
    "phi3": decoder("Phi3", 256, **{**_SMALL, "hidden_size": 3072, "num_attention_heads": 32}),
    "gpt2": real("GPT2LMHeadModel", text(128), layers="n_layer", **_QUIET),
    "gpt_neox": decoder("GPTNeoX", **_SMALL),
    "opt": decoder("OPT", 256, **{**_SMALL, "ffn_dim": 4096, "word_embed_proj_dim": 1024}),
    "bloom": decoder("Bloom", 256, n_layer=2, n_head=16, hidden_size=1024, vocab_size=32000),
    "falcon": decoder("Falcon", **{**_SMALL, "multi_query": True}),
    "olmo2": decoder("Olmo2", **_SMALL),
    "stablelm": decoder("StableLm", **_SMALL),
    "starcoder2": decoder("Starcoder2", **{**_SMALL, "num_key_value_heads": 2}),
    "granite": decoder("Granite", 1024, **_SMALL),
    "llama_8b_64": decoder("Llama", 64, **{**_LLAMA, "hidden_size": 4096, "vocab_size": 8192,
                                            "intermediate_size": 14336}),
    "distilbert": encoder("DistilBert", layers="n_layers"),
    "roberta_4": encoder("Roberta", _masked(128, 4)),
    "electra": encoder("Electra", _masked(256)),
    "albert": encoder("Albert", hidden_size=768, num_attention_heads=12, intermediate_size=3072),
    "mpnet": encoder("MPNet"),
    "deberta": encoder("Deberta", relative_attention=True, pos_att_type=["c2p", "p2c"]),
    "modernbert": encoder("ModernBert", _masked(512), global_attn_every_n_layers=2),
    "esm": encoder("Esm", lambda: {"input_ids": ids(1, 128, vocabulary=30)}, vocab_size=33,
                   pad_token_id=1, position_embedding_type="rotary", token_dropout=False),
    "squeezebert": encoder("SqueezeBert"),
    "bert_large_384_8": encoder("Bert", _masked(384, 8), hidden_size=1024, num_attention_heads=16,
                                 intermediate_size=4096),
    "t5_encoder": real("T5EncoderModel", text(128), layers="num_layers"),
    "vit": vision("ViT"),
    "vit_8": vision("ViT", batch=8),
    "deit": vision("DeiT"),
    "beit": vision("Beit"),
    "dinov2": vision("Dinov2"),
    "clip_vision": vision("CLIPVision"),
    "siglip_vision": vision("SiglipVision"),
    "swinv2": vision("Swinv2", 256, **_STAGES, image_size=256, window_size=8),
    "convnext": vision("ConvNext", **_STAGES),
    "regnet": vision("RegNet", layers="", depths=[2, 2, 3, 1]),
    "resnet50": vision("ResNet", layers="", depths=[2, 2, 2, 2]),
    "mobilenet_v2": vision("MobileNetV2", layers=""),
    "mobilevit": vision("MobileViT", 256, layers=""),
    "efficientnet": vision("EfficientNet", 240, layers="", width_coefficient=1.0,
                           depth_coefficient=0.5, hidden_dim=1280),
    "poolformer": vision("PoolFormer", layers="", depths=[1, 1, 2, 1]),
    "pvt": vision("PvtV2", layers=""),
    "wav2vec2": sound("Wav2Vec2"),
    "hubert": sound("Hubert"),
    "whisper_encoder": real("WhisperModel", lambda: {"input_features": torch.randn(1, 80, 3000)},
                             "encoder", "encoder_layers", d_model=768, encoder_attention_heads=12,
                             encoder_ffn_dim=3072),
    "ast": real("ASTModel", lambda: {"input_values": torch.randn(1, 1024, 128)},
                 layers="num_hidden_layers"),
}  # fmt: skip

#: Those that are planned, compiled and measured on 16 cores in twice nine minutes.
CPU = (
    *("bert", "distilbert", "deberta", "modernbert", "gpt2", "t5_encoder", "qwen3_0.6b"),
    *("whisper_decoder", "vit", "swin", "beit", "segformer", "mobilevit", "convnext", "resnet50"),
    *("regnet", "mobilenet_v2", "efficientnet", "poolformer", "wav2vec2"),
)


def exported(name: str, half: bool, seed: int = 0) -> torch.export.ExportedProgram:
    """Build a model with seeded weights and export it.

    Parameters
    ----------
    name
        One of :data:`MODELS`.
    half
        Whether floats are float16.
    seed
        Of weights and inputs.
    """
    torch.manual_seed(seed)
    torch.set_grad_enabled(False)
    module, inputs = MODELS[name].build()
    wrapped: nn.Module = Tensors(module.eval().requires_grad_(False), list(inputs))
    tensors = tuple(inputs.values())
    if half:
        wrapped = wrapped.half()
        tensors = tuple(x.half() if x.is_floating_point() else x for x in tensors)
    return torch.export.export(wrapped, tensors)
