"""NVTX ranges around kernels, which Nsight Systems shows; nothing where ``nvtx`` is missing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Ranges:
    """Ranges of a thread, one inside the other.

    Parameters
    ----------
    titles : mapping of str to str
        What to call a function's range; its own name where there is none.
    """

    def __init__(self, titles: Mapping[str, str]) -> None:
        self._titles = titles
        self._nvtx: Any = None
        try:
            import nvtx
        except ImportError:
            return
        self._nvtx = nvtx

    def push(self, name: str) -> None:
        """Begin a range."""
        if self._nvtx is not None:
            self._nvtx.push_range(self._titles.get(name, name), domain="tvm_fusion")

    def pop(self) -> None:
        """End the innermost range."""
        if self._nvtx is not None:
            self._nvtx.pop_range(domain="tvm_fusion")
