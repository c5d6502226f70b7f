"""Keys and values of the last positions that sliding-window attention sees, written in turn.

position p lies in slot p mod W, so a step writes one slot and moves nothing.  Attention takes keys
in any order, as long as the mask knows their positions:

one token:       write slot p mod W;  keys = slots            slot s has the last position <= p that
n <= W tokens:   keys = [slots, new keys];  then write         is s modulo W, if there is one
"""

import torch
from torch import Tensor
from transformers.cache_utils import StaticLayer

_NEVER = 2**30  # a position behind all queries: causal masks hide it


class WindowLayer(StaticLayer):
    """A cache layer of W slots.

    Its mask sizes are a tensor of offsets: what transformers adds to 0, 1, ... for positions.
    """

    is_sliding = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Write keys and values, and return all that the new queries may see."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        keys, values = self.keys, self.values
        assert keys is not None
        assert values is not None
        count = key_states.shape[-2]
        slots = (self._arange(count) + self.cumulative_length) % self.max_cache_len
        self.cumulative_length.add_(count)
        seen = keys, values
        if count > 1:  # what is overwritten here is seen by the first queries
            seen = torch.cat((keys, key_states), 2), torch.cat((values, value_states), 2)
        keys.index_copy_(2, slots, key_states)
        values.index_copy_(2, slots, value_states)
        return seen

    def get_mask_sizes(self, query_length: int) -> tuple[int, Tensor]:
        """Return how many keys queries see, and what to add to 0, 1, ... for their positions."""
        size, start = self.max_cache_len, self.cumulative_length
        last = start if query_length == 1 else start - 1
        slots = self._arange(size)
        positions = last - (last - slots) % size
        positions = torch.where(positions < 0, _NEVER, positions)
        if query_length > 1:
            positions = torch.cat((positions, start + self._arange(query_length)))
        length = positions.shape[0]
        return length, positions - self._arange(length)

    def _arange(self, count: int) -> Tensor:
        return torch.arange(count, device=self.cumulative_length.device)
