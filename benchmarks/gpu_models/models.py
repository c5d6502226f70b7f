"""The models in float16 with seeded weights: transformers' modules, CNNs, diffusion networks."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from . import cnn, diffusion, weights

LENGTH, STACK_LENGTH = 128, 512  # tokens of the encoders and GPT-2; of the stack of decoder layers
PADDED = 16  # tokens at the end that BERT's mask leaves out
HIDDEN = 4096


@dataclass(frozen=True)
class Model:
    """A module, a batch size and how inputs are drawn."""

    name: str  # of the row, unique; names a folder as well
    batch: int  # of all inputs
    build: Callable[[], nn.Module]  # makes the module
    # Takes the batch size and draws keyword arguments on the CPU, floats in float32.
    inputs: Callable[[int], dict[str, Tensor]]
    output: str | None  # field of what the module returns; ``None``: it returns a tensor
    has_images: bool = False  # whether PyTorch is to be tried with channels last in memory, too
    seed: int = 0  # of the weights; inputs have seeds next to it

    def module(self, device: str) -> nn.Module:
        """Make the module in evaluation mode; parameters are float16, buffers as they were."""
        with torch.device(device):
            module = self.build().eval().requires_grad_(False)
        for name, parameter in module.named_parameters():
            drawn = torch.from_numpy(weights.draw(name, tuple(parameter.shape), self.seed))
            parameter.data = drawn.to(device)
        return module

    def draw(self, seed: int, device: str) -> dict[str, Tensor]:
        """Draw inputs; floats are float16."""
        torch.manual_seed(self.seed + seed)
        return {
            name: (value.half() if value.is_floating_point() else value).to(device)
            for name, value in self.inputs(self.batch).items()
        }

    def result(self, returned: Any) -> Tensor:
        """Take the tensor out of what the module returns."""
        return returned if self.output is None else returned[self.output]

    def exported(self) -> tuple[torch.export.ExportedProgram, nn.Module]:
        """Return the module as PyTorch exports it, and the module."""
        module = self.module("cpu")
        return torch.export.export(module, (), self.draw(0, "cpu")), module


class DecoderStack(nn.Module):
    """Layers of a Llama-style decoder over hidden states, causal, with the norm behind them.

    Without a mask tensor, attention is causal by its flag on both sides: PyTorch's flash kernels
    take no mask.
    """

    def __init__(self, config: transformers.LlamaConfig) -> None:
        super().__init__()
        whole = transformers.LlamaModel(config)
        self.layers, self.norm, self.rotary = whole.layers, whole.norm, whole.rotary_emb

    def forward(self, hidden: Tensor) -> Tensor:
        """Apply all layers to ``(batch, tokens, HIDDEN)``."""
        positions = torch.arange(hidden.shape[1], device=hidden.device)[None]
        angles = self.rotary(hidden, positions)
        for layer in self.layers:
            hidden = layer(hidden, position_ids=positions, position_embeddings=angles)
        return self.norm(hidden)


def _bert() -> nn.Module:
    return transformers.BertModel(transformers.BertConfig(), add_pooling_layer=False)


def _gpt2() -> nn.Module:
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(use_cache=False))


def _vit() -> nn.Module:
    return transformers.ViTForImageClassification(transformers.ViTConfig(num_labels=1000))


def _t5_encoder() -> nn.Module:
    return transformers.T5EncoderModel(transformers.T5Config())


def _stack() -> nn.Module:
    config = transformers.LlamaConfig(
        vocab_size=8,  # the table of words is not used
        hidden_size=HIDDEN,
        intermediate_size=14336,
        num_hidden_layers=4,
        num_attention_heads=32,
        num_key_value_heads=8,
        use_cache=False,
    )
    return DecoderStack(config)


def _swin_tiny() -> nn.Module:
    return transformers.SwinForImageClassification(transformers.SwinConfig(num_labels=1000))


def _clip_text() -> nn.Module:
    return transformers.CLIPTextModel(transformers.CLIPTextConfig())


def _mistral() -> nn.Module:
    config = transformers.MistralConfig(
        vocab_size=32000,
        hidden_size=2048,
        intermediate_size=7168,
        num_hidden_layers=4,
        num_attention_heads=16,
        num_key_value_heads=4,
        sliding_window=256,
        use_cache=False,
    )
    return transformers.MistralForCausalLM(config)


def _whisper_encoder() -> nn.Module:
    config = transformers.WhisperConfig(
        d_model=768, encoder_layers=12, encoder_attention_heads=12, encoder_ffn_dim=3072
    )
    return transformers.WhisperModel(config).encoder


def _ids(vocabulary: int) -> Callable[[int], dict[str, Tensor]]:
    return lambda batch: {"input_ids": torch.randint(vocabulary, (batch, LENGTH))}


def _masked_ids(batch: int) -> dict[str, Tensor]:
    mask = torch.ones(batch, LENGTH, dtype=torch.int64)
    mask[:, LENGTH - PADDED :] = 0
    return {**_ids(30522)(batch), "attention_mask": mask}


def _image(batch: int) -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(batch, 3, 224, 224)}


def _latents(batch: int) -> dict[str, Tensor]:
    return {"latents": torch.randn(batch, diffusion.LATENTS, 64, 64)}


def _diffusion_step(batch: int) -> dict[str, Tensor]:
    return {
        "sample": _latents(batch)["latents"],
        "angles": diffusion.sinusoids(10.0, batch),
        "context": torch.randn(batch, diffusion.TOKENS, diffusion.CONTEXT),
    }


def _clip_ids(batch: int) -> dict[str, Tensor]:
    return {"input_ids": torch.randint(49000, (batch, 77))}


def _mistral_ids(batch: int) -> dict[str, Tensor]:
    return {"input_ids": torch.randint(32000, (batch, STACK_LENGTH))}


def _spectrogram(batch: int) -> dict[str, Tensor]:
    return {"input_features": torch.randn(batch, 80, 3000)}


def _hidden(batch: int) -> dict[str, Tensor]:
    return {"hidden": torch.randn(batch, STACK_LENGTH, HIDDEN)}


_STATE, _LOGITS = "last_hidden_state", "logits"
_ALL: tuple[tuple[str, Callable[[], nn.Module], Callable[[int], Any], str | None], ...] = (
    ("bert_128", _bert, _masked_ids, _STATE),
    ("gpt2_128", _gpt2, _ids(50257), _LOGITS),
    ("vit_b16", _vit, _image, _LOGITS),
    ("t5_small_encoder_128", _t5_encoder, _ids(32128), _STATE),
    ("decoder_4x4096_512", _stack, _hidden, None),
)
_IMAGES: tuple[tuple[str, Callable[[], nn.Module], Callable[[int], Any], tuple[int, ...]], ...] = (
    ("resnet50", cnn.resnet50, _image, (1, 8)),
    ("mobilenet_v2", cnn.mobilenet_v2, _image, (1, 8)),
    ("efficientnet_b0", cnn.efficientnet_b0, _image, (1,)),
    ("convnext_tiny", cnn.convnext_tiny, _image, (1,)),
    ("diffusion_unet", diffusion.UNet, _diffusion_step, (1,)),
    ("vae_decoder", diffusion.Decoder, _latents, (1,)),
)
# Models that no target was set for, with weights and inputs of another seed.
NEW_SEED = 1126
_NEW: tuple[tuple[str, Callable[[], nn.Module], Callable[[int], Any], str | None, bool], ...] = (
    ("swin_tiny", _swin_tiny, _image, _LOGITS, True),
    ("clip_text_77", _clip_text, _clip_ids, _STATE, False),
    ("mistral_4x2048_512", _mistral, _mistral_ids, _LOGITS, False),
    ("whisper_small_encoder", _whisper_encoder, _spectrogram, _STATE, False),
)
BATCHES = (1, 8)
MODELS = (
    {
        f"{name}_batch_{batch}": Model(f"{name}_batch_{batch}", batch, build, inputs, output)
        for batch in BATCHES
        for name, build, inputs, output in _ALL
    }
    | {
        f"{name}_batch_{batch}": Model(f"{name}_batch_{batch}", batch, build, inputs, None, True)
        for name, build, inputs, batches in _IMAGES
        for batch in batches
    }
    | {
        f"{name}_batch_1": Model(f"{name}_batch_1", 1, build, inputs, output, is_image, NEW_SEED)
        for name, build, inputs, output, is_image in _NEW
    }
)
