"""The formula of packed weights in PyTorch, as modules that take a parameter's place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import torch

from ..operators.packed_weights import dequantize
from .formats import PackedWeight


class TorchOperators:
    """The formula on tensors."""

    def field(self, x: torch.Tensor, shift: int, bits: int) -> torch.Tensor:
        """Shift and mask, where there is anything to."""
        x = x >> shift if shift else x
        return x if shift + bits == 8 else x & ((1 << bits) - 1)

    def stack(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """Join along a new last axis."""
        return torch.cat([part.unsqueeze(-1) for part in parts], -1)

    def reshape(self, x: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        """Change the shape."""
        return x.reshape(tuple(shape))

    def cast(self, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Change the dtype."""
        return x.to(dtype)

    def first_columns(self, x: torch.Tensor, count: int) -> torch.Tensor:
        """Cut the last axis."""
        return x[..., :count]

    def add(self, x: torch.Tensor, y: Any) -> torch.Tensor:
        """Add."""
        return x + y

    def subtract(self, x: torch.Tensor, y: Any) -> torch.Tensor:
        """Subtract."""
        return x - y

    def multiply(self, x: torch.Tensor, y: Any) -> torch.Tensor:
        """Multiply."""
        return x * y


class PackedParameter(torch.nn.Module):
    """Planes and scales as buffers; calling it computes the weight.

    Parameters
    ----------
    weight
        What the file has.
    dtype
        Of the weight that it computes.
    """

    def __init__(self, weight: PackedWeight, dtype: torch.dtype) -> None:
        super().__init__()
        self.packing, self.dtype = weight.packing, dtype
        for name, array in weight.arrays.items():
            self.register_buffer(name, as_tensor(array))

    def forward(self) -> torch.Tensor:
        """Compute the weight."""
        result: torch.Tensor = dequantize(self.packing, self._buffers, self.dtype, TorchOperators())
        return result

    def extra_repr(self) -> str:
        """Tell the shape and the bits."""
        packing = self.packing
        bits = sum(packing.planes) or 16
        return f"{packing.rows} x {packing.columns}, {bits} bits in blocks of {packing.size}"


def as_tensor(array: np.ndarray) -> torch.Tensor:
    """Copy an array, which a file may own, into a tensor."""
    array = np.array(array)
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)
