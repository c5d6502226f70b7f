"""The machine's bandwidth and peak: measured once, kept in the user's cache."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

import numpy as np

from ....device import Device, cuda_devices, host_cpu
from ....device.hip import hip_devices, open_hip
from .clocks import GpuEvents, GpuRuntime
from .result import Rates

_COPIED = 128 << 20  # bytes of each of the two arrays: more than the last cache of most machines
_COPIED_ON_GPU = 512 << 20
# Rows, columns, terms: so few that numpy's library multiplies them on the calling thread.
_PRODUCTS, _BATCH = ((64, 64, 64), (60, 64, 68), (96, 96, 28)), 64
_SECONDS, _REPEATS = 0.2, 5
_MEASUREMENTS = 5  # in as many processes, of which the best counts: other processes only slow it


def rates(kind: str, threads: int) -> Rates:
    """Return the rates of this machine's CPU, or of its first GPU.

    Parameters
    ----------
    kind
        TVM's kind of target.
    threads
        Of a CPU's kernels.

    Returns
    -------
    Rates
        Of a CPU: a copy by as many threads, and numpy's product of float32 matrices on one, times
        the threads. Of a GPU: a copy, and the published peak of its
        architecture.
    """
    device = device_of(kind)
    key = json.dumps([kind, device.arch, device.name, device.cores, threads])
    path = _home() / "rates.json"
    known = _read(path).get(key, [])
    if len(known) < _MEASUREMENTS:
        found = _of_cpu(threads) if kind == "llvm" else _of_gpu(kind, device.peak_flops)
        known = [*known, asdict(found)]
        content = {**_read(path), key: known}
        with contextlib.suppress(OSError):  # a file system that is read-only: measured again
            path.parent.mkdir(parents=True, exist_ok=True)
            staging = path.with_name(f".{os.getpid()}.rates")
            staging.write_text(json.dumps(content, indent=1))
            staging.replace(path)
    peaks = {
        dtype: max(one["peak_flops"][dtype] for one in known) for dtype in known[0]["peak_flops"]
    }
    return Rates(max(one["bandwidth"] for one in known), peaks, known[0]["peak_from"])


def device_of(kind: str) -> Device:
    """Return this machine's CPU, or its first GPU of a kind."""
    if kind == "llvm":
        return host_cpu()
    return (cuda_devices() if kind == "cuda" else hip_devices(open_hip()))[0]


def _home() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "tvm_fusion"


def _read(path: Path) -> dict:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _of_cpu(threads: int) -> Rates:
    with ThreadPoolExecutor(threads) as pool:  # numpy's copies let go of Python's lock
        arrays = [np.ones((threads, _COPIED // 4 // threads), "float32") for _ in range(2)]

        def copy() -> float:
            return max(pool.map(_timed_copy, *arrays))

        bandwidth = 2 * arrays[0].nbytes / _least(copy)
        arrays.clear()
    peak = max(_product_rate(*shape) for shape in _PRODUCTS)
    return Rates(bandwidth, {"float32": peak * threads}, "measured")


def _timed_copy(target: np.ndarray, source: np.ndarray) -> float:
    """Copy, and tell the seconds of this thread: what others take of its core does not count."""
    begin = time.thread_time()
    np.copyto(target, source)
    return time.thread_time() - begin


def _product_rate(m: int, n: int, k: int) -> float:
    """Tell the operations per second of one thread that multiplies small matrices."""
    a, b, out = (np.ones((_BATCH, *shape), "float32") for shape in ((m, k), (k, n), (m, n)))

    def multiply() -> float:
        begin = time.thread_time()
        np.matmul(a, b, out=out)
        return time.thread_time() - begin

    return float(2 * _BATCH * m * n * k / _least(multiply))


def _least(seconds: Callable[[], float]) -> float:
    """Repeat a measurement for a while; the least counts, since others only add to it."""
    seconds()
    least, end, runs = float("inf"), time.perf_counter() + _SECONDS, 0
    while runs < _REPEATS or time.perf_counter() < end:
        least, runs = min(least, seconds()), runs + 1
    return max(least, 1e-9)


def _of_gpu(kind: str, peak_flops: Mapping[str, float]) -> Rates:
    gpu, clock = GpuRuntime(kind), GpuEvents(kind)
    size = _COPIED_ON_GPU
    source, target = gpu.allocate(size), gpu.allocate(size)
    best = float("inf")
    try:
        for _ in range(_REPEATS):
            clock.start()
            marks = []
            for _ in range(4):
                marks.append(clock.mark())
                gpu.call("MemcpyAsync", target, source, ctypes.c_size_t(size), 3, clock.stream)
            times = clock.read([*marks, clock.mark()])
            best = min(best, *(b - a for a, b in pairwise(times)))
    finally:
        gpu.call("Free", source)
        gpu.call("Free", target)
    return Rates(2 * size / (best / 1e6), dict(peak_flops), "published")
