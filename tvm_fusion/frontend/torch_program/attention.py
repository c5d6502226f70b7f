"""Decompose torch's fused layers of transformers, which ``nn.Transformer`` calls in eval mode."""

from typing import Any

import torch
from torch.nn.functional import gelu, layer_norm, linear, relu, scaled_dot_product_attention

# What a mask covers, by torch's numbers: queries and keys, keys of each batch, or everything.
_OF_PAIRS, _OF_KEYS = 0, 1


def multi_head_attention(
    query: Any,
    key: Any,
    value: Any,
    embed_dim: int,
    num_head: int,
    qkv_weight: Any,
    qkv_bias: Any,
    proj_weight: Any,
    proj_bias: Any,
    mask: Any = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[Any, Any]:
    """Decompose ``aten._native_multi_head_attention``; arguments are torch's.

    What a mask marks is left out: any element but zero, of whatever dtype, as in torch's kernel.
    """
    sizes = (query.shape[0], -1, num_head, embed_dim // num_head)
    if query is key and key is value:
        parts = linear(query, qkv_weight, qkv_bias).chunk(3, -1)
    else:
        weights, biases = qkv_weight.chunk(3), qkv_bias.chunk(3)
        parts = tuple(map(linear, (query, key, value), weights, biases))
    q, k, v = (x.reshape(sizes).transpose(1, 2) for x in parts)
    hidden = None if mask is None else _hidden(mask, mask_type, q.shape[2], k.shape[2])
    if need_weights:
        scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)
        if hidden is not None:
            scores = scores.masked_fill(hidden, float("-inf"))
        weights = scores.softmax(-1)
        result = weights @ v
    else:
        weights = None
        shown = None if hidden is None else ~hidden
        result = scaled_dot_product_attention(q, k, v, attn_mask=shown)
    result = result.transpose(1, 2).reshape(query.shape[0], -1, embed_dim)
    result = linear(result, proj_weight, proj_bias)
    if weights is None:
        return result, result.new_empty(0)
    return result, weights.mean(1) if average_attn_weights else weights


def encoder_layer(
    src: Any,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Any,
    qkv_bias: Any,
    proj_weight: Any,
    proj_bias: Any,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Any,
    norm_bias_1: Any,
    norm_weight_2: Any,
    norm_bias_2: Any,
    ffn_weight_1: Any,
    ffn_bias_1: Any,
    ffn_weight_2: Any,
    ffn_bias_2: Any,
    mask: Any = None,
    mask_type: int | None = None,
) -> Any:
    """Decompose ``aten._transformer_encoder_layer_fwd``; arguments are torch's."""

    def first(x: Any) -> Any:
        return layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)

    def second(x: Any) -> Any:
        return layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)

    def attention(x: Any) -> Any:
        weights = (qkv_weight, qkv_bias, proj_weight, proj_bias)
        options = {"mask": mask, "need_weights": False, "mask_type": mask_type}
        return multi_head_attention(x, x, x, embed_dim, num_heads, *weights, **options)[0]

    def feed_forward(x: Any) -> Any:
        hidden = linear(x, ffn_weight_1, ffn_bias_1)
        hidden = gelu(hidden) if use_gelu else relu(hidden)
        return linear(hidden, ffn_weight_2, ffn_bias_2)

    if norm_first:
        x = src + attention(first(src))
        return x + feed_forward(second(x))
    x = first(src + attention(src))
    return second(x + feed_forward(x))


def _hidden(mask: Any, mask_type: int | None, queries: int, keys: int) -> Any:
    """Return a mask in a form that broadcasts over batch, heads, queries and keys."""
    mask = mask.to(torch.bool)
    if mask_type == _OF_KEYS:
        return mask.reshape(-1, 1, 1, keys)
    if mask_type == _OF_PAIRS:
        return mask.reshape(1, 1, queries, keys)
    return mask


DECOMPOSITIONS = {
    torch.ops.aten._native_multi_head_attention.default: multi_head_attention,
    torch.ops.aten._transformer_encoder_layer_fwd.default: encoder_layer,
}
