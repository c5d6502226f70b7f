"""Products on tensor cores: GEMMs of models, of few rows, of symbolic rows, of random shapes."""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from .works import Block, Work, linear, swiglu_block, swiglu_joined

MOST, LEAST = 8192, 17  # extents of random products
TYPES = ("float16", "bfloat16")
RESIDUAL = 3  # the argument's number


@dataclass(frozen=True)
class Product(Work):
    """A product of its first two arguments."""

    flops: int = 0  # two for each multiply-add

    def draw(self, seed: int, device: str) -> list[Tensor]:
        """Draw arguments from a normal distribution, weights so that sums are as large as these."""
        x, weight, *others = super().draw(seed, device)
        return [x, weight * x.shape[-1] ** -0.5 if weight.ndim == 2 else weight, *others]


@dataclass(frozen=True)
class Gemm(Product):
    """A linear layer with an epilogue, compared also with cuBLAS, which leaves the epilogue out.

    A residual, of as many bytes as the result, it adds itself: beta is 1.
    """

    def peers(self) -> dict[str, Callable[..., Tensor | tuple[Tensor, ...]]]:
        """Return PyTorch's compiler, the bare GEMM, and the GEMM that adds to a residual."""
        found = {**super().peers(), "cublas": _bare}
        return {**found, "addmm": _added} if len(self.shapes) > RESIDUAL else found


def _bare(x: Tensor, weight: Tensor, *_: Tensor) -> Tensor:
    return torch.mm(x, weight.T)


def _added(x: Tensor, weight: Tensor, _: Tensor, residual: Tensor) -> Tensor:
    return torch.addmm(residual, x, weight.T)


@dataclass(frozen=True)
class ProductBlock(Product):
    """A work of several products; all weights are scaled."""

    def draw(self, seed: int, device: str) -> list[Tensor]:
        """Draw arguments from normal distributions."""
        return Block(self.name, self.function, self.shapes, self.dtype).draw(seed, device)


def linear_bias(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Linear layer."""
    return functional.linear(x, weight, bias)


def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Linear layer, then GELU."""
    return functional.gelu(functional.linear(x, weight, bias))


def linear_residual(x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor) -> Tensor:
    """Linear layer, added to a residual."""
    return functional.linear(x, weight, bias) + residual


def linear_gelu_residual(x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor) -> Tensor:
    """Linear layer, GELU, added to a residual."""
    return functional.gelu(functional.linear(x, weight, bias)) + residual


PLAIN = "linear"
GEMMS: dict[str, Callable[..., Tensor]] = {
    PLAIN: linear,
    "bias": linear_bias,
    "gelu": linear_gelu,
    "residual": linear_residual,
    "gelu_residual": linear_gelu_residual,
}
# (rows, terms, columns, epilogue) of BERT, GPT-2, ViT, Swin, Llama; one sequence, and batches.
SHAPES = (
    (4096, 4096, 4096, "linear"),
    (4096, 4096, 4096, "gelu_residual"),
    (128, 768, 2304, "bias"),
    (128, 768, 768, "residual"),
    (128, 768, 3072, "gelu"),
    (128, 3072, 768, "residual"),
    (197, 768, 2304, "bias"),
    (197, 768, 3072, "gelu"),
    (197, 3072, 768, "residual"),
    (3136, 96, 384, "gelu"),
    (784, 768, 192, "residual"),
    (196, 384, 1152, "bias"),
    (512, 4096, 6144, "linear"),
    (512, 4096, 4096, "residual"),
    (512, 4096, 14336, "linear"),
    (512, 14336, 4096, "residual"),
    (1024, 768, 3072, "gelu"),
    (1024, 3072, 768, "residual"),
    (1576, 768, 3072, "gelu"),
    (1576, 3072, 768, "residual"),
    (4096, 4096, 14336, "linear"),
    *((rows, 4096, 14336, "linear") for rows in (16, 17, 24, 32, 48, 64)),
)


def gemm(m: int, k: int, n: int, epilogue: str, dtype: str = "float16") -> Gemm:
    """Return the workload of a GEMM with an epilogue."""
    shapes: list[tuple[int, ...]] = [(m, k), (n, k)]
    shapes += [(n,)] if epilogue != PLAIN else []
    shapes += [(m, n)] if "residual" in epilogue else []
    name = f"gemm_{m}x{k}x{n}_{epilogue}" + ("" if dtype == "float16" else f"_{dtype}")
    return Gemm(name, GEMMS[epilogue], tuple(shapes), dtype, flops=2 * m * n * k)


SWIGLU = tuple(
    ProductBlock(
        f"{how.__name__}_512_{h}_{i}",
        how,
        ((512, h), (h,), *sides, (i, h)),
        flops=6 * 512 * h * i,
    )
    for h, i in ((4096, 14336),)
    for how, sides in ((swiglu_block, ((h, i), (h, i))), (swiglu_joined, ((h, 2 * i),)))
)
# One artifact for up to 4,096 rows, called with fewer.
SYMBOLIC = tuple(
    replace(work, name=work.name.replace("gemm_", "gemm_any_"), most_rows=4096)
    for work in (gemm(rows, 4096, 4096, "gelu") for rows in (100, 512, 4096))
)
PRODUCTS = (
    *SWIGLU,
    *(gemm(*shape) for shape in SHAPES),
    gemm(4096, 4096, 4096, "linear", "bfloat16"),
    *SYMBOLIC,
)


def drawn_products(seed: int, count: int) -> list[Product]:
    """Draw products of any extents, small ones as often as large ones, and of each the plain one.

    Beside a product with an epilogue stands the one without, which cuBLAS computes itself.
    """
    dice = random.Random(seed)

    def extent() -> int:
        return round(LEAST * (MOST / LEAST) ** dice.random())

    found: list[Product] = []
    for _ in range(count):
        sizes = extent(), extent(), extent()
        epilogue, dtype = dice.choice(list(GEMMS)), dice.choice(TYPES)
        found += [gemm(*sizes, one, dtype) for one in dict.fromkeys((epilogue, PLAIN))]
    return [replace(work, name=f"random_{work.name}", seed=seed) for work in found]
