"""One step of a Llama-style decoder, as a function of one token, its weights and its caches."""

import math
from collections.abc import Callable, Sequence
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
        tensors += [torch.tensor(at, device=device) for at in self.positions]
        tensors += [angles.cos().to(dtype), angles.sin().to(dtype)]
        for shape in self.shapes[len(tensors) :]:
            drawn = torch.randn(shape, generator=generator, device=device, dtype=dtype)
            if len(shape) == 2 and shape[0] != WORDS:
                drawn *= shape[0] ** -0.5
            tensors.append(drawn)
        return tensors

    def examples(self) -> list[Tensor]:
        """Return example arguments: only shapes and dtypes matter, nothing is written to them."""
        whole = 1 + len(self.positions)
        numbers = [torch.zeros(shape, dtype=torch.int64) for shape in self.shapes[:whole]]
        rest = [torch.empty(shape, dtype=DTYPES[self.dtype]) for shape in self.shapes[whole:]]
        return [*numbers, *rest]

    def touched(self, arguments: list[Tensor], results: list[Tensor]) -> int:
        """Count one row of the table of words."""
        words = arguments[self.static[0]]
        return super().touched(arguments, results) - (len(words) - 1) * words[0].nbytes

    @property
    def positions(self) -> list[list[int]]:
        """Where in the caches the token is, if they have room for it."""
        return []

    @property
    def static(self) -> tuple[int, ...]:
        """Positions of weights and caches."""
        return tuple(range(3 + len(self.positions), len(self.shapes)))


class StaticStep(DecodeStep):
    """A step that writes the token's keys and values into the last place of its caches."""

    @property
    def positions(self) -> list[list[int]]:
        """The last place."""
        return [[self.shapes[-1][2] - 1]]

    @property
    def in_place(self) -> tuple[int, ...]:
        """Positions of caches."""
        return tuple(i for i, shape in enumerate(self.shapes) if len(shape) == 4)


def decode_step(
    token: Tensor, cos: Tensor, sin: Tensor, words: Tensor, norm: Tensor, head: Tensor,
    *layers: Tensor,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Return the logits of the next token, and the new keys and values of each layer.

    Parameters
    ----------
    token
        ``(1, 1)``.
    cos, sin
        ``(DEPTH,)``, of this position.
    words, norm, head
        ``(WORDS, HIDDEN)``, ``(HIDDEN,)``, ``(HIDDEN, WORDS)``.
    *layers
        For each layer the first norm's scale, the factors of queries with keys and values and of
        attention's result, the second norm's scale, the factors of gate with up and of down; keys
        and values so far, ``(1, KEY_HEADS, context, DEPTH)``.
    """
    new: list[Tensor] = []

    def attend(q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        new.extend((k, v))
        return functional.scaled_dot_product_attention(
            q, torch.cat([keys, k], 2), torch.cat([values, v], 2), enable_gqa=True
        )

    return (_logits(token, cos, sin, words, norm, head, layers, attend), *new)


def static_decode_step(
    token: Tensor, position: Tensor, cos: Tensor, sin: Tensor, words: Tensor, norm: Tensor,
    head: Tensor, *layers: Tensor,
) -> Tensor:  # fmt: skip
    """Return the logits of the next token; its keys and values are written into the caches.

    Parameters
    ----------
    position
        ``(1,)``, where in the caches; places behind it are not looked at.
    token, cos, sin, words, norm, head, *layers
        As of :func:`decode_step`.
    """

    def attend(q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        keys.index_copy_(2, position, k)
        values.index_copy_(2, position, v)
        mask = torch.arange(keys.shape[2], device=keys.device) <= position
        return functional.scaled_dot_product_attention(
            q, keys, values, attn_mask=mask[None, None, None], enable_gqa=True
        )

    return _logits(token, cos, sin, words, norm, head, layers, attend)


def _logits(
    token: Tensor, cos: Tensor, sin: Tensor, words: Tensor, norm: Tensor, head: Tensor,
    layers: Sequence[Tensor], attend: Callable[..., Tensor],
) -> Tensor:  # fmt: skip
    x = functional.embedding(token, words)
    for start in range(0, len(layers), PER_LAYER):
        before, qkv, out, behind, sides, down, keys, values = layers[start : start + PER_LAYER]
        parts = (rms_norm(x, before) @ qkv).view(1, 1, -1, DEPTH).transpose(1, 2)
        q, k, v = parts.split([HEADS, KEY_HEADS, KEY_HEADS], 1)
        found = attend(rotated(q, cos, sin), rotated(k, cos, sin), v, keys, values)
        x = x + found.transpose(1, 2).reshape(1, 1, -1) @ out
        gate, up = (rms_norm(x, behind) @ sides).chunk(2, -1)
        x = x + (functional.silu(gate) * up) @ down
    return rms_norm(x, norm) @ head


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


_SHAPES = _shapes(4, 2048)
_TOKEN, *_REST = _SHAPES
STEPS = (
    DecodeStep("decode_step_4_layers_2048", decode_step, _SHAPES),
    StaticStep("decode_step_static_4_layers_2048", static_decode_step, (_TOKEN, (1,), *_REST)),
)
