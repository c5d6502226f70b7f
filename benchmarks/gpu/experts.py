"""Mixtures of experts: products of rows sorted by expert, and whole blocks with their routing."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from .products import Product
from .works import DTYPES


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
        """Return PyTorch's compiler, and its operator as it is."""
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


@dataclass(frozen=True)
class ExpertBlock(Product):
    """Router, top k, sort, both products, and the weighted sum, as transformers has them."""

    top: int = 0  # experts of a token

    def draw(self, seed: int, device: str) -> list[Tensor]:
        """Draw rows and weights; logits are exact and distinct: all sides choose alike."""
        x, router, *weights = super(Product, self).draw(seed, device)
        generator = torch.Generator(device).manual_seed(seed)
        experts = len(router)
        order = torch.rand(len(x), experts, generator=generator, device=device).argsort(-1)
        x[:, :experts] = order * (4 / experts) - 2
        router[:] = torch.eye(*router.shape, device=device)
        return [x, router, *(weight * weight.shape[-1] ** -0.5 for weight in weights)]

    def examples(self) -> list[Tensor]:
        """Return example arguments: only shapes matter, the memory is never touched."""
        return [torch.empty(shape, dtype=DTYPES[self.dtype]) for shape in self.shapes]

    def peers(self) -> dict[str, Callable[..., Tensor | tuple[Tensor, ...]]]:
        """Return PyTorch's compiler, and its operators as they are."""
        return {**super().peers(), "eager": self.function}

    def reference(self, x: Tensor, router: Tensor, joined: Tensor, down: Tensor) -> Tensor:
        """Compute it in float64, one expert after the other."""
        scores, chosen = torch.softmax(x @ router.T, -1).topk(self.top, -1)
        total = torch.zeros_like(x)
        for expert in range(len(router)):
            row, place = torch.where(chosen == expert)
            hidden = _gated(x[row] @ joined[expert].T)
            total[row] += (hidden @ down[expert].T) * scores[row, place, None]
        return total


def experts_block(top: int) -> Callable[..., Tensor]:
    """Return a block that sends each token to so many experts."""

    def block(x: Tensor, router: Tensor, joined: Tensor, down: Tensor) -> Tensor:
        experts, logits = len(router), functional.linear(x, router)
        scores, chosen = torch.softmax(logits, -1, dtype=torch.float32).topk(top, -1)
        expert, order = chosen.reshape(-1).sort()
        counted = expert.int() if x.is_cuda else expert.float()  # what histc takes there
        counts = torch.histc(counted, bins=experts, min=0, max=experts - 1)
        ends = counts.cumsum(0, dtype=torch.int32)
        hidden = _gated(experts_linear(x[order // top], joined, ends))
        weighted = experts_linear(hidden, down, ends) * scores.to(x.dtype).reshape(-1)[order, None]
        place = torch.empty_like(order)
        place[order] = torch.arange(len(order), device=x.device)
        return weighted[place].reshape(len(x), top, -1).sum(1).to(x.dtype)

    return block


def _block(tokens: int, top: int, experts: int, h: int, i: int) -> ExpertBlock:
    name = f"experts_block_{tokens}_{top}_of_{experts}x{h}x{i}"
    shapes = (tokens, h), (experts, h), (experts, 2 * i, h), (experts, h, i)
    flops = 6 * tokens * top * h * i
    return ExpertBlock(name, experts_block(top), shapes, "bfloat16", flops=flops, top=top)


def _work(
    function: Callable[..., Tensor], rows: int, experts: int, k: int, n: int
) -> ExpertProduct:
    name = f"{function.__name__}_{rows}_of_{experts}x{k}x{n}"
    shapes = ((rows, k), (experts, n, k))
    return ExpertProduct(name, function, shapes, "bfloat16", flops=2 * rows * k * n)


# 512 tokens by 2 of 8 experts, 1,024 tokens by 8 of 64; 32 tokens of either; blocks of Mixtral's
# and OLMoE's sizes.
EXPERTS = (
    _work(experts_linear, 1024, 8, 4096, 14336),
    _work(experts_swiglu, 1024, 8, 4096, 2 * 14336),
    _work(experts_linear, 8192, 64, 2048, 1024),
    _work(experts_swiglu, 8192, 64, 2048, 2 * 1024),
    _work(experts_linear, 64, 8, 4096, 14336),
    _work(experts_linear, 256, 64, 2048, 1024),
    _block(512, 2, 8, 4096, 14336),
    _block(1024, 8, 64, 2048, 1024),
)
