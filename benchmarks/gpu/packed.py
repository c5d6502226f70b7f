"""Attention of packed sequences: tokens one behind the other, offsets say where each one begins.

The graph is what a user writes in PyTorch: the offsets give each token the first and the last key
of its sequence, and the mask compares positions with them. PyTorch's kernel takes the offsets.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from .products import Product

# Lengths of 16 sequences, 4,096 tokens: in another order for each draw.
LENGTHS = (37, 64, 100, 128, 129, 150, 200, 222, 256, 300, 333, 350, 400, 427, 480, 520)


def packed_attention(q: Tensor, k: Tensor, v: Tensor, offsets: Tensor, is_causal: bool) -> Tensor:
    """Attention of each token ``[1, heads, tokens, depth]`` to those of its own sequence."""
    token = torch.arange(q.shape[-2], device=q.device)
    of = torch.bucketize(token, offsets, right=True)
    begin, end = offsets[of - 1], offsets[of]
    seen = (token >= begin[:, None]) & (token < end[:, None])
    if is_causal:
        seen = seen & (token <= token[:, None])
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)


def packed(q: Tensor, k: Tensor, v: Tensor, offsets: Tensor) -> Tensor:
    """Attention to all tokens of a sequence."""
    return packed_attention(q, k, v, offsets, False)


def packed_causal(q: Tensor, k: Tensor, v: Tensor, offsets: Tensor) -> Tensor:
    """Attention to the tokens of a sequence that come before."""
    return packed_attention(q, k, v, offsets, True)


@dataclass(frozen=True)
class Packed(Product):
    """Attention whose last argument is offsets of sequences."""

    is_causal: bool = False  # whether tokens attend to those before alone

    def draw(self, seed: int, device: str) -> list[Tensor]:
        """Draw from a normal distribution, and an order of the sequences."""
        tensors = Product(self.name, self.function, self.shapes[:-1], self.dtype).draw(seed, device)
        order = torch.randperm(len(LENGTHS), generator=torch.Generator().manual_seed(seed))
        ends = torch.tensor(LENGTHS)[order].cumsum(0)
        return [*tensors, torch.cat([torch.zeros(1, dtype=ends.dtype), ends]).to(device)]

    def rival(self) -> Callable[..., Tensor]:
        """Return PyTorch's variable-length kernel, in the layout that it expects."""
        longest, is_causal = max(LENGTHS), self.is_causal

        def call(q: Tensor, k: Tensor, v: Tensor, offsets: Tensor) -> Tensor:
            rows = [x[0].transpose(0, 1) for x in (q, k, v)]
            ends = offsets.to(torch.int32)
            attention = torch.ops.aten._flash_attention_forward
            out = attention(*rows, ends, ends, longest, longest, 0.0, is_causal, False)[0]
            return out.transpose(0, 1)[None]

        return call


def _packed(function: Callable[..., Tensor], heads: int, depth: int, is_causal: bool) -> Packed:
    shape = (1, heads, sum(LENGTHS), depth)
    pairs = sum(n * (n + 1) // 2 if is_causal else n * n for n in LENGTHS)
    name = f"{function.__name__}_attention_{heads}x{shape[2]}x{depth}"
    shapes = (*(shape,) * 3, (len(LENGTHS) + 1,))
    flops = 4 * heads * depth * pairs
    return Packed(name, function, shapes, flops=flops, is_causal=is_causal)


PACKED = (_packed(packed, 16, 64, False), _packed(packed_causal, 16, 128, True))
