"""Products of other types than half types on tensor cores: float8, int8, float32, tfloat32."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional

from .products import Product
from .works import linear

SCALE = 1 / 64  # of both operands together: half types hold the results


@dataclass(frozen=True)
class NarrowProduct(Product):
    """A linear layer without bias."""

    peer: Callable[..., Tensor] | None = None  # what PyTorch has for it; ``None``: its compiler
    allowed_error: float = 2.0**-10  # as :func:`benchmarks.gpu.run.difference` takes it

    def rival(self) -> Callable[..., Tensor]:
        """Return PyTorch's own operator."""
        return super().rival() if self.peer is None else self.peer

    def reference(self, x: Tensor, weight: Tensor) -> Tensor:
        """Compute it in float64."""
        total = x.double() @ weight.double().T
        return total if self.dtype == "float32" else total * SCALE

    def draw(self, seed: int, device: str) -> list[Tensor]:
        """Draw arguments from a normal distribution; bytes are all equally likely."""
        if self.dtype != "int8":
            return super(Product, self).draw(seed, device)
        generator = torch.Generator(device).manual_seed(seed)
        given = {"generator": generator, "device": device, "dtype": torch.int8}
        return [torch.randint(-16, 16, shape, **given) for shape in self.shapes]


def float8_linear(x: Tensor, weight: Tensor) -> Tensor:
    """Linear layer of float8, scaled, into float16."""
    return (functional.linear(x.float(), weight.float()) * SCALE).half()


def scaled_mm(x: Tensor, weight: Tensor) -> Tensor:
    """Compute the same by PyTorch's operator, sums kept in float32 as ours are."""
    scales = {"scale_a": _number(SCALE, x.device), "scale_b": _number(1.0, x.device)}
    return torch._scaled_mm(x, weight.T, **scales, out_dtype=torch.float16)


@lru_cache
def _number(value: float, device: torch.device) -> Tensor:
    return torch.tensor(value, device=device)


def int8_linear(x: Tensor, weight: Tensor) -> Tensor:
    """Linear layer of int8, added up in int32, scaled, into float16."""
    total = functional.linear(x.to(torch.int32), weight.to(torch.int32))
    return (total.float() * SCALE).half()


@lru_cache
def _compiled_int_mm() -> Callable[..., Tensor]:
    def int_mm(x: Tensor, weight: Tensor) -> Tensor:
        return (torch._int_mm(x, weight.T).float() * SCALE).half()

    return torch.compile(int_mm, dynamic=False)


def int_mm(x: Tensor, weight: Tensor) -> Tensor:
    """Compute the same by PyTorch's operator, its epilogue compiled."""
    return _compiled_int_mm()(x, weight)


def tf32_linear(x: Tensor, weight: Tensor) -> Tensor:
    """Linear layer of float32 with tfloat32 allowed."""
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        return functional.linear(x, weight)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False


def _rows() -> list[NarrowProduct]:
    kinds = {
        "float8_e4m3fn": ("float8", float8_linear, scaled_mm, (), 2.0**-10),
        "int8": ("int8", int8_linear, int_mm, (), 2.0**-10),
        "float32": ("float32", linear, None, (), 2.0**-18),
        "tf32": ("tf32", linear, tf32_linear, ("tf32",), 2.0**-10),
    }
    found = []
    for dtype, (name, function, peer, allow, error) in kinds.items():
        for m, k, n in ((4096, 4096, 4096), (512, 4096, 14336), (1024, 768, 3072), (128, 768, 768)):
            work = NarrowProduct(
                f"{name}_linear_{m}x{k}x{n}",
                function,
                ((m, k), (n, k)),
                "float32" if dtype == "tf32" else dtype,
                flops=2 * m * n * k,
                allow=allow,
                peer=peer,
                allowed_error=error,
            )
            found.append(work)
    return found


NARROW_PRODUCTS = tuple(_rows())
