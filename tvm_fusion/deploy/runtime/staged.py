"""Small inputs of the host on their way to a device: copied to memory that stays.

A step of a language model takes a token and a position. New memory on the device for each would
take longer than its kernels' launches, and freeing it would wait for all kernels before.
"""

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import tvm_ffi

from .direct import DirectInputs
from .tensors import aligned_empty, copy_to, to_tensor

MOST_BYTES = 1 << 16  # that CUDA takes from pageable memory without waiting for the device


class StagedInputs:
    """Inputs as numpy arrays, copied to a device in the order of its calls.

    Each thread has memory of its own, which the next call overwrites behind the kernels of the one
    before.

    Parameters
    ----------
    device
        Not the CPU.
    """

    def __init__(self, inputs: DirectInputs, device: tvm_ffi.Device) -> None:
        self._inputs, self._device = inputs, device
        self._local = threading.local()

    def take(self, inputs: Mapping[str, Any]) -> list[tvm_ffi.Tensor] | None:
        """Copy inputs; ``None`` where one is no such array, or is too large."""
        taken = self._inputs.take(inputs)
        if taken is None:
            return None
        arrays = taken[0]
        shapes = [array.shape for array in arrays]
        staged: _Staged | None = getattr(self._local, "staged", None)
        if staged is None or staged.shapes != shapes:
            if max((array.nbytes for array in arrays), default=0) > MOST_BYTES:
                return None
            staged = self._local.staged = _Staged(arrays, self._device)
        return staged.filled(arrays)


class _Staged:
    """Memory for arrays of certain shapes, on the host as well, where the device copies from."""

    def __init__(self, arrays: list[np.ndarray], device: tvm_ffi.Device) -> None:
        self.shapes = [array.shape for array in arrays]
        self._parts = [aligned_empty(array.shape, array.dtype) for array in arrays]
        host = tvm_ffi.device("cpu", 0)
        pairs = [(source := to_tensor(part, host), copy_to(source, device)) for part in self._parts]
        self._tensors = [there for _, there in pairs]
        self._copies = [(*pair, part) for pair, part in zip(pairs, self._parts, strict=True)]
        self._copy = tvm_ffi.get_global_func("runtime.TVMTensorCopyFromTo")

    def filled(self, arrays: list[np.ndarray]) -> list[tvm_ffi.Tensor]:
        """Copy arrays to the device."""
        for (source, there, part), array in zip(self._copies, arrays, strict=True):
            part[...] = array
            self._copy(source, there)
        return self._tensors
