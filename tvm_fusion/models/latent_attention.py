"""Multi-head latent attention in its absorbed form: over the latents that the cache holds.

    expanded   k, v = W_k c, W_v c;  softmax(q k') v             all of the cache, in each step
    absorbed   W_v (softmax((W_k' q) c') c)                      keys and values are the latents

One token multiplies its queries and results by the matrices that otherwise every position of the
cache is multiplied by; all heads share their keys then.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

_NAME = "tvm_fusion_latent"
_SIZES = ("kv_b_proj", "qk_nope_head_dim", "v_head_dim", "kv_lora_rank", "expand_kv")


@contextlib.contextmanager
def absorbed(model: nn.Module) -> Iterator[None]:
    """Let layers of latent attention, if there are some, multiply latents."""
    layers = [m for m in model.modules() if all(hasattr(m, name) for name in _SIZES)]
    before: Any = model.config._attn_implementation
    if not layers or before != "sdpa":
        yield
        return
    AttentionInterface.register(_NAME, _attend)
    AttentionMaskInterface.register(_NAME, sdpa_mask)
    model.set_attn_implementation(_NAME)
    for layer in layers:
        layer.expand_kv = _latents
    try:
        yield
    finally:
        model.set_attn_implementation(before)
        for layer in layers:
            del layer.expand_kv


def _latents(latents: Tensor, rotated: Tensor) -> tuple[Tensor, Tensor]:
    """Take keys and values as they are in the cache, in place of ``expand_kv``."""
    return torch.cat((latents, rotated), -1), latents


def _attend(
    layer: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    **kwargs: object,
) -> tuple[Tensor, None]:
    """Attend to latents, as transformers calls it."""
    sizes = [layer.qk_nope_head_dim, layer.v_head_dim]
    weight = layer.kv_b_proj.weight.view(-1, sum(sizes), layer.kv_lora_rank)
    of_keys, of_values = weight.split(sizes, 1)
    plain, rotated = query.split([sizes[0], query.shape[-1] - sizes[0]], -1)
    query = torch.cat((plain @ of_keys, rotated), -1)
    found = scaled_dot_product_attention(
        query, key, value, attention_mask, scale=scaling, enable_gqa=True
    )
    return (found @ of_values.transpose(-1, -2)).transpose(1, 2), None
