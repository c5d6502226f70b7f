"""Two linear layers of many narrow rows, one behind the other: where one kernel has both.

MLPs of fields of radiance and of recommenders, pointwise convolutions of first stages.
"""

from collections.abc import Callable

from torch import Tensor
from torch.nn import functional

from .products import ProductBlock

Activation = Callable[[Tensor], Tensor]
# (rows, columns of x, between and behind, activation); the model was fitted to all but HELD_OUT.
SHAPES = (
    (65536, 64, 64, 64, "relu"),
    (262144, 64, 64, 64, "relu"),
    (16384, 64, 64, 64, "relu"),
    (65536, 32, 64, 16, "relu"),
    (65536, 64, 128, 64, "gelu"),
    (65536, 128, 128, 128, "relu"),
    (16384, 128, 128, 128, "relu"),
    (4096, 128, 128, 128, "relu"),
    (65536, 128, 256, 128, "relu"),
    (65536, 32, 128, 32, "gelu"),
    (100352, 96, 192, 96, "gelu"),
    (25088, 96, 384, 96, "gelu"),
    (3136, 96, 384, 96, "gelu"),
    (25088, 64, 256, 64, "relu"),
)
HELD_OUT = (
    (2048, 64, 64, 64, "relu"),
    (131072, 48, 96, 24, "relu"),
    (12544, 96, 384, 96, "gelu"),
    (1024, 128, 128, 128, "relu"),
    (6272, 128, 256, 128, "gelu"),
    (65536, 256, 64, 256, "relu"),
)


def layers(activation: Activation) -> Callable[..., Tensor]:
    """Return the function of two layers with biases."""

    def both(x: Tensor, first: Tensor, b: Tensor, second: Tensor, c: Tensor) -> Tensor:
        return functional.linear(activation(functional.linear(x, first, b)), second, c)

    return both


def _pair(m: int, k: int, n: int, columns: int, activation: str) -> ProductBlock:
    return ProductBlock(
        f"layers_{m}x{k}x{n}x{columns}_{activation}",
        layers(getattr(functional, activation)),
        ((m, k), (n, k), (n,), (columns, n), (columns,)),
        flops=2 * m * n * (k + columns),
    )


LAYER_PAIRS = tuple(_pair(*shape) for shape in (*SHAPES, *HELD_OUT))
