"""Products of mixtures of experts: rows sorted by expert, each by the weight of its expert."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from .products import Product


@dataclass(frozen=True)
class ExpertProduct(Product):
    """A linear layer of each expert; the last argument are the ends of their rows."""

    def draw(self, seed: int, device: str) -> list[Tensor]:
        """Draw rows and weights from normal distributions; some experts have far more rows."""
        rows, experts = self.shapes[0][0], self.shapes[1][0]
        x, weight = super(Product, self).draw(seed, device)
        generator = torch.Generator().manual_seed(seed)
        popular = torch.rand(experts, generator=generator) ** 2 + 0.02
        chosen = torch.multinomial(popular, rows, replacement=True, generator=generator)
        ends = torch.bincount(chosen, minlength=experts).cumsum(0).int()
        return [x, weight * x.shape[-1] ** -0.5, ends.to(device)]

    def peers(self) -> dict[str, Callable[..., Tensor | tuple[Tensor, ...]]]:
        """Give PyTorch's compiler, and its operator as it is."""
        return {**super().peers(), "grouped_mm": self.function}

    def reference(self, x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
        """Compute it in float64."""
        sizes = ends.diff(prepend=ends.new_zeros(1)).tolist()
        parts = [a @ w.T for a, w in zip(x.split(sizes), weight, strict=True)]
        total = torch.cat(parts)
        return total if self.function is experts_linear else _gated(total)


def experts_linear(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """Multiply rows by the weight of their expert."""
    return functional.grouped_mm(x, weight.transpose(1, 2), offs=ends)


def experts_swiglu(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """Multiply by a joined weight, and SiLU of one half of the columns by the other."""
    return _gated(experts_linear(x, weight, ends))


def _gated(total: Tensor) -> Tensor:
    gate, up = total.chunk(2, -1)
    return functional.silu(gate) * up


def _work(
    function: Callable[..., Tensor], rows: int, experts: int, k: int, n: int
) -> ExpertProduct:
    name = f"{function.__name__}_{rows}_of_{experts}x{k}x{n}"
    shapes = ((rows, k), (experts, n, k))
    return ExpertProduct(name, function, shapes, "bfloat16", flops=2 * rows * k * n)


# 512 tokens by 2 of 8 experts, 1,024 tokens by 8 of 64; 32 tokens of either.
EXPERTS = (
    _work(experts_linear, 1024, 8, 4096, 14336),
    _work(experts_swiglu, 1024, 8, 4096, 2 * 14336),
    _work(experts_linear, 8192, 64, 2048, 1024),
    _work(experts_swiglu, 8192, 64, 2048, 2 * 1024),
    _work(experts_linear, 64, 8, 4096, 14336),
    _work(experts_linear, 256, 64, 2048, 1024),
)
