"""Attention of models: plain, causal, biased, with soft-capped scores, windows and shared heads."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from .products import Product

BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}
CAP, WINDOW = 50.0, 1024  # Gemma 2's of scores; keys that a query sees


@dataclass(frozen=True)
class Attention(Product):
    """Attention of queries, keys and values, the first three arguments."""

    # The same by PyTorch's FlexAttention, where no pinned backend takes it as it is.
    flex: Callable[..., Tensor] | None = None

    def peers(self) -> dict[str, Callable[..., Tensor]]:
        """Return PyTorch's compiler, each of its kernels alone, and FlexAttention."""
        pinned = {name: partial(_pinned, kind, self.function) for name, kind in BACKENDS.items()}
        flex = {} if self.flex is None else {"flex": self.flex}
        return {**super().peers(), **pinned, **flex}


def _pinned(kind: SDPBackend, function: Callable[..., Tensor], *arguments: Tensor) -> Tensor:
    with sdpa_kernel(kind):
        return function(*arguments)


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention of every row to every row."""
    return functional.scaled_dot_product_attention(q, k, v)


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention of every row to those before it and to itself."""
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def gqa_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention whose heads share keys and values in groups."""
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def biased_attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """Attention with a bias of each head, row and key."""
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)


@dataclass(frozen=True)
class Alibi(Attention):
    """Attention whose last argument is the slope of each head: powers of two."""

    def draw(self, seed: int, device: str) -> list[Tensor]:
        """Draw q, k and v from a normal distribution; slopes as Press et al. have them."""
        *operands, slopes = super().draw(seed, device)
        exponents = torch.arange(1, len(slopes) + 1, device=device) * -8.0 / len(slopes)
        return [*operands, torch.exp2(exponents).to(slopes.dtype)]


def _distance(q: Tensor, k: Tensor) -> Tensor:
    """Return how far before each query each key is."""
    rows = torch.arange(q.shape[2], device=q.device)
    return rows[:, None] - torch.arange(k.shape[2], device=q.device)


def alibi_attention(q: Tensor, k: Tensor, v: Tensor, slopes: Tensor) -> Tensor:
    """Causal attention with a bias that falls with the distance, by a slope of each head."""
    distance = _distance(q, k)
    bias = -slopes[:, None, None] * distance.to(q.dtype)
    mask = torch.where(distance >= 0, bias, float("-inf"))[None]
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def window_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention to the nearest ``WINDOW`` keys."""
    distance = _distance(q, k)
    mask = (distance >= 0) & (distance < WINDOW)
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask[None, None])


def capped_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention with soft-capped scores."""
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    scores = CAP * torch.tanh(scores / CAP)
    scores = torch.where(_distance(q, k) >= 0, scores, float("-inf"))
    return torch.softmax(scores.float(), -1).to(q.dtype) @ v


def _flex(q: Tensor, k: Tensor, v: Tensor, slopes: Tensor | None = None, *, how: str) -> Tensor:
    """Compute one of the above by FlexAttention."""

    def score(s: Tensor, batch: Tensor, head: Tensor, row: Tensor, key: Tensor) -> Tensor:
        if how == "capped":
            return CAP * torch.tanh(s / CAP)
        return s if slopes is None else s - slopes[head] * (row - key)

    mask = _block_mask(q.shape[2], how == "window")
    return _compiled_flex()(q, k, v, score_mod=score, block_mask=mask)


_MADE: dict[object, object] = {}


def _compiled_flex() -> Callable[..., Tensor]:
    if "flex" not in _MADE:
        _MADE["flex"] = torch.compile(flex_attention, dynamic=False)
    return _MADE["flex"]  # type: ignore[return-value]


def _block_mask(rows: int, has_window: bool) -> object:
    def sees(batch: Tensor, head: Tensor, row: Tensor, key: Tensor) -> Tensor:
        causal = row >= key
        return causal & (row - key < WINDOW) if has_window else causal

    if (rows, has_window) not in _MADE:
        _MADE[rows, has_window] = create_block_mask(sees, None, None, rows, rows)
    return _MADE[rows, has_window]


def heads(
    batch: int, count: int, rows: int, width: int, how: Callable[..., Tensor],
    kv_heads: int | None = None, others: Iterable[tuple[int, ...]] = (), flex: str | None = None,
    dtype: str = "float16",
) -> Attention:  # fmt: skip
    """Return an attention workload; masked products (causal, window) are not counted."""
    q, kv = (batch, count, rows, width), (batch, kv_heads or count, rows, width)
    keys = float(rows)
    if how is window_attention:
        keys = WINDOW - WINDOW**2 / 2 / rows
    elif how not in (attention, biased_attention):
        keys /= 2
    flops = round(4 * batch * count * rows * keys * width)
    shared = "" if kv_heads is None else f"_kv{kv_heads}"
    name = f"{how.__name__}_{batch}x{count}x{rows}x{width}{shared}"
    name += "" if dtype == "float16" else f"_{dtype}"
    peer = None if flex is None else partial(_flex, how=flex)
    kind = Alibi if how is alibi_attention else Attention
    return kind(name, how, (q, kv, kv, *others), dtype, flops=flops, flex=peer)


# (batch, heads, rows, width)
HEADS = (
    (1, 16, 1024, 64, attention),
    (4, 32, 4096, 128, causal_attention),
    (64, 12, 197, 64, attention),
    (1, 12, 128, 64, attention),
)
WINDOWS = heads(64, 3, 49, 32, biased_attention, others=[(1, 3, 49, 49)])
FLOAT32 = ((1, 12, 512, 64), (1, 12, 2048, 64), (1, 16, 512, 128))
WIDTHS = (64, 80, 96, 192, 256)  # of causal ones
ATTENTION = (
    *(heads(*shape) for shape in HEADS),
    WINDOWS,
    *(heads(2, 16, 2048, width, causal_attention) for width in WIDTHS),
    *(heads(2, 16, 2048, width, attention) for width in (80, 128)),
    heads(2, 32, 2048, 128, gqa_attention, kv_heads=8),
    heads(8, 32, 512, 128, gqa_attention, kv_heads=8),
    heads(2, 16, 2048, 64, alibi_attention, others=[(16,)], flex="alibi"),
    heads(2, 16, 2048, 128, capped_attention, flex="capped"),
    heads(2, 16, 4096, 128, window_attention, flex="window"),
    *(heads(*shape, attention, dtype="float32") for shape in FLOAT32),
)
