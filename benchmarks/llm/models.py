"""Language models of transformers with the shapes of released ones, and random weights."""

import math
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional

# Hidden size, intermediate size, layers, heads, heads of keys and values, width of a head, words.
SHAPES = {
    "Qwen2-0.5B": (896, 4864, 24, 14, 2, 64, 151936),
    "Qwen2-1.5B": (1536, 8960, 28, 12, 2, 128, 151936),
    "Qwen3-0.6B": (1024, 3072, 28, 16, 8, 128, 151936),
    "Llama-3.2-1B": (2048, 8192, 16, 32, 8, 64, 128256),
    "Llama-3-8B": (4096, 14336, 32, 32, 8, 128, 128256),
    "Llama-3-70B": (8192, 28672, 80, 64, 8, 128, 128256),
    "Llama-tiny": (256, 512, 2, 8, 4, 32, 512),
    "Qwen3Moe-30B-A3B": (2048, 768, 48, 32, 4, 128, 151936),
}
_EXPERTS = {"Qwen3Moe-30B-A3B": {"num_experts": 128, "num_experts_per_tok": 8}}
_SCALED = 128  # terms that share a scale of int4


def model_of(name: str, layers: int | None, vocabulary: int | None, length: int) -> Any:
    """Make a model of random weights."""
    torch.manual_seed(0)
    return _class(name)(_config(name, layers, vocabulary, length)).eval()


def drawn_on(
    device: str, name: str, layers: int | None, vocabulary: int | None, length: int
) -> Any:
    """Make a model in float16 on the CPU, whose weights another device draws in no time."""
    config = _config(name, layers, vocabulary, length)
    with torch.device("meta"):
        model = _class(name)(config).half()
    model = model.to_empty(device="cpu").eval()
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    generator = torch.Generator(device).manual_seed(0)
    for tensor in {id(p): p for p in model.parameters()}.values():
        drawn = torch.randn(tensor.shape, generator=generator, device=device, dtype=tensor.dtype)
        scale = tensor.shape[-1] ** -0.5 if tensor.dim() > 1 else 0.1
        tensor.data.copy_(drawn * scale + (tensor.dim() == 1))
    model.tie_weights()
    return model


def _class(name: str) -> Any:
    return getattr(transformers, f"{name.partition('-')[0]}ForCausalLM")


def _config(name: str, layers: int | None, vocabulary: int | None, length: int) -> Any:
    hidden, inner, depth, heads, shared, width, words = SHAPES[name]
    return _class(name).config_class(
        vocab_size=vocabulary or words,
        hidden_size=hidden,
        intermediate_size=inner,
        **({"moe_intermediate_size": inner, **_EXPERTS[name]} if name in _EXPERTS else {}),
        num_hidden_layers=layers or depth,
        num_attention_heads=heads,
        num_key_value_heads=shared,
        head_dim=width,
        max_position_embeddings=length,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
    )


class Int4Linear(nn.Module):
    """A linear layer whose weights have four bits, with a scale of every 128 terms."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        blocks = weight.float().unflatten(1, (-1, _SCALED))
        scale = blocks.abs().amax(-1, keepdim=True) / 7
        numbers = (blocks / scale).round().clamp(-8, 7).flatten(1).to(torch.uint8) + 8 & 15
        self.register_buffer("packed", numbers[:, ::2] | numbers[:, 1::2] << 4)
        self.register_buffer("scale", scale[..., 0].half())

    def forward(self, x: Tensor) -> Tensor:
        """Unpack and multiply."""
        pairs = torch.stack([self.packed & 15, self.packed >> 4], -1).flatten(1)
        numbers = (pairs.to(x.dtype) - 8).unflatten(1, (-1, _SCALED))
        return functional.linear(x, (numbers * self.scale[..., None]).flatten(1))


def pack_linear(model: Any) -> None:
    """Replace the linear layers of a decoder's layers, not its head, by ones of four bits."""
    for name, module in list(model.model.named_modules()):
        if isinstance(module, nn.Linear):
            parent, _, own = name.rpartition(".")
            setattr(model.model.get_submodule(parent), own, Int4Linear(module.weight.data))


def touched(model: Any, places: int, batch: int) -> int:
    """Count the bytes that a step reads: weights and tables of a head, and keys and values.

    Of experts those of a token's.
    """
    config = model.config
    named = (*model.named_parameters(), *model.named_buffers())
    share = batch * getattr(config, "num_experts_per_tok", 1) / getattr(config, "num_experts", 1)
    sizes = {id(t): _bytes(t) * (min(1, share) if ".experts." in n else 1) for n, t in named}
    rows = 2 * config.num_key_value_heads * config.num_hidden_layers * batch * places
    return int(sum(sizes.values())) + rows * config.head_dim * 2


def _bytes(tensor: Tensor) -> int:
    return math.prod(tensor.shape) * tensor.itemsize
