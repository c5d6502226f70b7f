"""Products of half types with int4 or int8 weights and scales, of more rows than a decoder's."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from .products import Product
from .works import Work, int4_linear

GROUP = 128  # terms that share a scale of int4
K, N = 4096, 14336


@dataclass(frozen=True)
class PackedProduct(Product):
    """A linear layer whose second argument holds bytes."""

    def draw(self, seed: int, device: str) -> list[Tensor]:
        """Draw rows and scales from a normal distribution; bytes are all equally likely."""
        x, packed, scale = super(Product, self).draw(seed, device)
        if self.function is int8_linear:
            packed, scale = packed.view(torch.int8), scale / 16
        return [x, packed, scale * x.shape[-1] ** -0.5 / 4]

    def peers(self) -> dict[str, Callable[..., Tensor | tuple[Tensor, ...]]]:
        """Return PyTorch's compiler, and cuBLAS's GEMM with half weights of the same shape."""
        held: list[Tensor] = []

        def unpacked(x: Tensor, packed: Tensor, scale: Tensor) -> Tensor:
            if not held:  # made once; its bytes are read in every call
                held.append(torch.randn(N, K, dtype=x.dtype, device=x.device))
            return torch.mm(x, held[0].T)

        return {**super().peers(), "cublas": unpacked}


def int8_linear(x: Tensor, packed: Tensor, scale: Tensor) -> Tensor:
    """Linear layer with weights of a byte, and a scale of each column."""
    return functional.linear(x, packed.to(x.dtype) * scale[:, None])


def _work(name: str, function: Callable[..., Tensor], rows: int, *weights: tuple[int, ...]) -> Work:
    shapes = ((rows, K), *weights)
    return PackedProduct(
        f"{name}_linear_{rows}x{K}x{N}", function, shapes, packed=(1,), flops=2 * rows * K * N
    )


ROWS = (32, 128, 512)
PACKED_PRODUCTS = (
    *(_work("int4", int4_linear, m, (N, K // 2), (N, K // GROUP)) for m in ROWS),
    *(_work("int8_weight", int8_linear, m, (N, K), (N,)) for m in ROWS),
)
