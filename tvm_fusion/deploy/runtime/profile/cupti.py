"""Kernels of a call as NVIDIA's CUPTI records them, those of CUDA graphs, too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .calls import Call, Run

_BUFFER_BYTES = 8 << 20
_FORCED = 1  # flush of records that are not whole buffers
_KERNEL = "_kernel"  # behind a PrimFunc's name, in those of its kernels


class Unusable(Exception):
    """Why CUPTI cannot time the kernels here."""


class Recorder:
    """Records of all kernels that run on the device.

    Parameters
    ----------
    kind : {"cuda", "rocm"}
        Of the device.

    Raises
    ------
    Unusable
        Where the package ``cupti`` is missing, the driver refuses, or the GPU is not NVIDIA's.
    """

    def __init__(self, kind: str) -> None:
        if kind != "cuda":
            raise Unusable("HIP gives the kernels of a graph no times of their own")
        try:
            from cupti import cupti
        except Exception as error:  # guard: told; without a driver it raises what it likes
            reason = _first_line(error)
            raise Unusable(f"the package cupti-python does not load ({reason})") from error
        self._cupti: Any = cupti
        self._kernels: list[Any] = []
        self._call("activity_register_callbacks", lambda: (_BUFFER_BYTES, 0), self._kernels.extend)

    def timed(self, run: Callable[[], None], names: Sequence[str]) -> Run:
        """Run a function and time its kernels.

        Parameters
        ----------
        run
            Calls the function and waits for its end.
        names
            Of the PrimFuncs that it calls, in order.
        """
        kind = self._cupti.ActivityKind.CONCURRENT_KERNEL
        self._kernels.clear()
        self._call("activity_enable", kind)
        try:
            began = self._call("get_timestamp")
            run()
            ended = self._call("get_timestamp")
            self._call("activity_flush_all", _FORCED)
        finally:
            self._call("activity_disable", kind)
        found = [(str(one.name), int(one.start), int(one.end)) for one in self._kernels]
        return Run(tuple(_calls(found, names, began)), (ended - began) / 1e3)

    def _call(self, name: str, *args: Any) -> Any:
        try:
            return getattr(self._cupti, name)(*args)
        except Exception as error:  # guard: told; its exceptions are the extension module's own
            raise Unusable(f"CUPTI's {name} failed: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _calls(
    kernels: Sequence[tuple[str, int, int]], names: Sequence[str], began: int
) -> Iterator[Call]:
    """Tell which kernels belong to which call of a PrimFunc.

    A kernel that begins while the one before still runs, as dependent launches do, counts from
    that one's end on: so times add up to those in which the GPU computes.
    """
    counts = Counter(names)
    spans: dict[str, list[tuple[int, int]]] = {name: [] for name in counts}
    end = 0
    for name, start, stop in sorted(kernels, key=lambda kernel: kernel[1]):
        function = name.rpartition(_KERNEL)[0]
        if function in spans:
            spans[function].append((start, max(0, stop - max(start, end))))
        end = max(end, stop)
    called: Counter[str] = Counter()
    for name in names:
        each, left = divmod(len(spans[name]), counts[name])
        if each == 0 or left:
            found = f"{len(spans[name])} kernels in {counts[name]} calls"
            raise Unusable(f"CUPTI recorded {found} of {name}")
        own = spans[name][called[name] * each : (called[name] + 1) * each]
        called[name] += 1
        yield Call(name, (own[0][0] - began) / 1e3, sum(us for _, us in own) / 1e3)
