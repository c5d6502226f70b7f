"""Further memory-bound workloads: looked-up rows, pieces of tensors, other reductions of rows."""

import torch
from torch import Tensor
from torch.nn import functional

from .works import Work, gemv, layer_norm_gelu, linear, softmax


def log_softmax(x: Tensor) -> Tensor:
    """Logarithm of the softmax of rows."""
    return torch.log_softmax(x, -1)


def largest(x: Tensor) -> Tensor:
    """Find where the largest element of each row is, the first if there are several."""
    return torch.argmax(x, -1)


def running_sums(x: Tensor) -> Tensor:
    """Sum each row up to each of its elements."""
    return torch.cumsum(x, -1)


def concatenated(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    """ReLU of three tensors side by side."""
    return torch.relu(torch.cat([x, y, z], -1))


def split(x: Tensor) -> tuple[Tensor, Tensor]:
    """Apply one function to each half of the rows."""
    gate, up = x.chunk(2, -1)
    return torch.sigmoid(gate), torch.relu(up)


def embedded(words: Tensor, places: Tensor, scale: Tensor, shift: Tensor, ids: Tensor) -> Tensor:
    """Layer norm of rows of a table plus those of their positions."""
    total = functional.embedding(ids, words) + places
    return functional.layer_norm(total, total.shape[-1:], scale, shift, 1e-5)


def attended(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Attention of one token, whose heads share keys and values in groups."""
    return functional.scaled_dot_product_attention(q, keys, values, enable_gqa=True)


class Embedding(Work):
    """A work whose last argument holds numbers of rows of the first."""

    def draw(self, seed: int, device: str) -> list[Tensor]:
        """Draw tables from a normal distribution, and which rows are looked up."""
        generator = torch.Generator(device).manual_seed(seed)
        words, shape = self.shapes[0][0], self.shapes[-1]
        tables = Work(self.name, self.function, self.shapes[:-1], self.dtype).draw(seed, device)
        return [*tables, torch.randint(0, words, shape, generator=generator, device=device)]

    def touched(self, arguments: list[Tensor], results: list[Tensor]) -> int:
        """Count the bytes of rows that are looked up, not of the table."""
        words, *_, ids = arguments
        left_out = words.shape[0] - ids.unique().numel()
        return super().touched(arguments, results) - left_out * words[0].nbytes


OTHERS = (
    Work("log_softmax_8192x4096", log_softmax, ((8192, 4096),), floor=0.80),
    Work("argmax_8192x4096", largest, ((8192, 4096),), floor=0.80),
    Work("cumsum_8192x4096", running_sums, ((8192, 4096),), floor=0.80),
    Work(
        "concat_8192x4096", concatenated, ((8192, 2048), (8192, 1024), (8192, 1024)), floor=0.80
    ),
    Work("split_8192x4096", split, ((8192, 4096),), floor=0.80),
    Embedding(
        "embedding_norm_8192x768", embedded,
        ((50257, 768), (1024, 768), (768,), (768,), (8, 1024)), floor=0.80,
    ),
    Work("softmax_512x50257", softmax, ((512, 50257),)),  # rows that begin anywhere
    Work("layer_norm_gelu_8192x4095", layer_norm_gelu, ((8192, 4095), (4095,), (4095,))),
    Work("linear_16_rows_4096x14336", linear, ((16, 4096), (14336, 4096))),
    Work("gemv_8_rows_4096x14336", gemv, ((8, 4096), (4096, 14336))),
    *(
        Work(
            f"decode_attention_{n}x8192", attended,
            ((n, 32, 1, 128), (n, 8, 8192, 128), (n, 8, 8192, 128)), floor=0.80,
        )
        for n in (1, 8)
    ),
)  # fmt: skip
