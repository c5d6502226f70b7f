"""One step of a Llama-style decoder, as a function of one token, its weights and its caches."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from .works import DTYPES, Shape, Work, rms_norm

HEADS, KEY_HEADS, DEPTH = 32, 8, 128
HIDDEN, INNER, WORDS = 4096, 14336, 32000
PER_LAYER = 8  # tensors: two norms, four products, keys, values


@dataclass(frozen=True)
class DecodeStep(Work):
    """A step whose time includes the host's: it is called as a user calls it.

    Weights and caches stay where they are, as they do in a server.
    """

    allowed = 4  # errors of one operation: some thirty follow each other

    def draw(self, seed: int, device: str) -> list[Tensor]:
        """Draw a token, its rotary angles, weights scaled so that activations stay near one."""
        generator = torch.Generator(device).manual_seed(seed)
        dtype = DTYPES[self.dtype]
        angle = torch.rand(DEPTH // 2, generator=generator, device=device).mul(2 * math.pi)
        angles = torch.cat([angle, angle])
        tensors = [torch.randint(0, WORDS, (1, 1), generator=generator, device=device)]
        tensors += [angles.cos().to(dtype), angles.sin().to(dtype)]
        for shape in self.shapes[3:]:
            drawn = torch.randn(shape, generator=generator, device=device, dtype=dtype)
            if len(shape) == 2 and shape[0] != WORDS:
                drawn *= shape[0] ** -0.5
            tensors.append(drawn)
        return tensors

    def examples(self) -> list[Tensor]:
        """Give arguments whose shapes and dtypes matter only; nothing is written to them."""
        token, *rest = self.shapes
        found = [torch.empty(shape, dtype=DTYPES[self.dtype]) for shape in rest]
        return [torch.zeros(token, dtype=torch.int64), *found]

    def touched(self, arguments: list[Tensor], results: list[Tensor]) -> int:
        """Count one row of the table of words."""
        words = arguments[3]
        return super().touched(arguments, results) - (len(words) - 1) * words[0].nbytes

    @property
    def static(self) -> tuple[int, ...]:
        """Positions of weights and caches."""
        return tuple(range(3, len(self.shapes)))


def decode_step(
    token: Tensor, cos: Tensor, sin: Tensor, words: Tensor, norm: Tensor, head: Tensor,
    *layers: Tensor,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Give the logits of the next token, and what the caches of each layer get.

    Parameters
    ----------
    token : Tensor
        ``(1, 1)``.
    cos, sin : Tensor
        ``(DEPTH,)``, of this position.
    words, norm, head : Tensor
        ``(WORDS, HIDDEN)``, ``(HIDDEN,)``, ``(HIDDEN, WORDS)``.
    *layers : Tensor
        For each layer the first norm's scale, the factors of queries with keys and values and of
        attention's result, the second norm's scale, the factors of gate with up and of down; keys
        and values so far, ``(1, KEY_HEADS, context, DEPTH)``.
    """
    x = functional.embedding(token, words)
    results = []
    for start in range(0, len(layers), PER_LAYER):
        before, qkv, out, behind, sides, down, keys, values = layers[start : start + PER_LAYER]
        parts = (rms_norm(x, before) @ qkv).view(1, 1, -1, DEPTH).transpose(1, 2)
        q, k, v = parts.split([HEADS, KEY_HEADS, KEY_HEADS], 1)
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        found = functional.scaled_dot_product_attention(
            q, torch.cat([keys, k], 2), torch.cat([values, v], 2), enable_gqa=True
        )
        x = x + found.transpose(1, 2).reshape(1, 1, -1) @ out
        gate, up = (rms_norm(x, behind) @ sides).chunk(2, -1)
        x = x + (functional.silu(gate) * up) @ down
        results += [k, v]
    return (rms_norm(x, norm) @ head, *results)


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn pairs of elements that lie half a head apart."""
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


def _shapes(layers: int, context: int) -> tuple[Shape, ...]:
    heads = (HEADS + 2 * KEY_HEADS) * DEPTH
    cache = (1, KEY_HEADS, context, DEPTH)
    layer = (
        (HIDDEN,), (HIDDEN, heads), (HEADS * DEPTH, HIDDEN),
        (HIDDEN,), (HIDDEN, 2 * INNER), (INNER, HIDDEN), cache, cache,
    )  # fmt: skip
    words = ((WORDS, HIDDEN), (HIDDEN,), (HIDDEN, WORDS))
    return ((1, 1), (DEPTH,), (DEPTH,), *words, *(layer * layers))


DECODE = DecodeStep("decode_step_4_layers_2048", decode_step, _shapes(4, 2048))
