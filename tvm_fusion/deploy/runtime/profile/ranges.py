"""NVTX ranges around kernels, which Nsight Systems shows; nothing where ``nvtx`` is missing."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

_DOMAIN = "tvm_fusion"


class Ranges:
    """Ranges of a thread, one inside the other.

    Parameters
    ----------
    titles
        What to call the ranges of a function's calls, one after the other and then again; its own
        name where there is none.
    """

    def __init__(self, titles: Mapping[str, Sequence[str]]) -> None:
        self._titles = titles
        self._called: Counter[str] = Counter()
        self._nvtx: Any = None
        try:
            import nvtx
        except ImportError:
            return
        self._nvtx = nvtx

    def start(self) -> None:
        """Begin a run."""
        self._called.clear()

    def push(self, name: str) -> None:
        """Begin a range."""
        if self._nvtx is not None:
            titles = self._titles.get(name) or (name,)
            self._nvtx.push_range(titles[self._called[name] % len(titles)], domain=_DOMAIN)
            self._called[name] += 1

    def pop(self) -> None:
        """End the innermost range."""
        if self._nvtx is not None:
            self._nvtx.pop_range(domain=_DOMAIN)
