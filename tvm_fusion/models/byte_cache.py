"""Keys and values of a byte an element, with a scale of each position and head.

write:   scale = max |x| / largest number of the type;  bytes = round(x / scale)
read:    bytes * scale, computed by the attention that reads them
"""

import torch
from torch import Tensor
from transformers.cache_utils import StaticLayer

#: The largest number of each type that a cache may have.
LARGEST = {"int8": 127.0, "float8_e4m3fn": 448.0}


class ByteLayer(StaticLayer):
    """A cache layer whose elements have a byte each.

    Parameters
    ----------
    dtype
        Of :data:`LARGEST`. Elements of ``float8_e4m3fn`` are held as bits: PyTorch copies no rows
        of that type on CPUs.
    """

    def __init__(self, max_cache_len: int, dtype: str) -> None:
        super().__init__(max_cache_len)
        self._type, self._largest = getattr(torch, dtype), LARGEST[dtype]

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate bytes and scales."""
        kind = torch.int8 if self._is_integer else torch.uint8
        super().lazy_initialization(key_states.to(kind), value_states.to(kind))
        shape = (*key_states.shape[:2], self.max_cache_len, 1)
        self.key_scales, self.value_scales = (key_states.new_zeros(shape) for _ in range(2))

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Write keys and values, and return those of all positions."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        count = key_states.shape[-2]
        places = torch.arange(count, device=self.device) + self.cumulative_length
        self.cumulative_length.add_(count)
        return (
            self._written(self.keys, self.key_scales, places, key_states),
            self._written(self.values, self.value_scales, places, value_states),
        )

    @property
    def _is_integer(self) -> bool:
        return self._type == torch.int8

    def _written(self, stored: Tensor, scales: Tensor, places: Tensor, new: Tensor) -> Tensor:
        scale = (new.abs().amax(-1, keepdim=True).float() / self._largest).to(new.dtype)
        # A row of zeros has the scale 0, and stays zeros.
        quotients = new.float() / torch.where(scale > 0, scale, 1.0).float()
        quotients = quotients.clamp(-self._largest, self._largest)
        if self._is_integer:
            numbers = quotients.round().to(self._type)
        else:
            numbers = quotients.to(self._type).view(torch.uint8)
        stored.index_copy_(2, places, numbers)
        scales.index_copy_(2, places, scale)
        read = stored if self._is_integer else stored.view(self._type)
        return read.to(new.dtype) * scales
