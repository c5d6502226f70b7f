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

from ....device import cuda_devices, host_cpu
from .clocks import CudaEvents, Cudart
from .result import Rates

_COPIED = 128 << 20  # bytes of each of the two arrays: more than the last cache of most machines
_COPIED_ON_GPU = 512 << 20
_MATRIX = 512  # rows and columns: a millisecond, in which others seldom take the cores
_SECONDS, _REPEATS = 0.3, 7
_MEASUREMENTS = 5  # in as many processes, of which the best counts: other processes only slow it


def rates(kind: str, threads: int) -> Rates:
    """Return the rates of this machine's CPU, or of its first GPU.

    Parameters
    ----------
    kind : str
        TVM's kind of target.
    threads : int
        Of a CPU's kernels.

    Returns
    -------
    Rates
        Of a CPU: a copy by as many threads, and numpy's product of float32 matrices, which runs on
        all cores, scaled to the threads. Of a GPU: a copy, and the published peak of its
        architecture.
    """
    device = host_cpu() if kind == "llvm" else cuda_devices()[0]
    key = json.dumps([kind, device.arch, device.name, device.cores, threads])
    path = _home() / "rates.json"
    known = _read(path).get(key, [])
    if len(known) < _MEASUREMENTS:
        found = (
            _of_cpu(threads, device.cores or 1) if kind == "llvm" else _of_gpu(device.peak_flops)
        )
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


def _home() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "tvm_fusion"


def _read(path: Path) -> dict:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _of_cpu(threads: int, cores: int) -> Rates:
    with ThreadPoolExecutor(threads) as pool:  # numpy's copies let go of Python's lock
        arrays = [np.ones((threads, _COPIED // 4 // threads), "float32") for _ in range(2)]
        bandwidth = (
            2 * arrays[0].nbytes / _least_seconds(lambda: list(pool.map(np.copyto, *arrays)))
        )
        arrays.clear()
    a = np.ones((_MATRIX, _MATRIX), "float32")
    out = np.empty_like(a)
    peak = 2 * _MATRIX**3 / _least_seconds(lambda: np.matmul(a, a, out=out))
    return Rates(bandwidth, {"float32": peak * min(1.0, threads / cores)}, "measured")


def _least_seconds(run: Callable[[], object]) -> float:
    run()
    least, end, runs = float("inf"), time.perf_counter() + _SECONDS, 0
    while runs < _REPEATS or time.perf_counter() < end:
        begin = time.perf_counter()
        run()
        least, runs = min(least, time.perf_counter() - begin), runs + 1
    return least


def _of_gpu(peak_flops: Mapping[str, float]) -> Rates:
    cuda, clock = Cudart(), CudaEvents()
    size = _COPIED_ON_GPU
    source, target = cuda.allocate(size), cuda.allocate(size)
    best = float("inf")
    try:
        for _ in range(_REPEATS):
            clock.start()
            marks = []
            for _ in range(4):
                marks.append(clock.mark())
                cuda.call("cudaMemcpyAsync", target, source, ctypes.c_size_t(size), 3, clock.stream)
            times = clock.read([*marks, clock.mark()])
            best = min(best, *(b - a for a, b in pairwise(times)))
    finally:
        cuda.call("cudaFree", source)
        cuda.call("cudaFree", target)
    return Rates(2 * size / (best / 1e6), dict(peak_flops), "published")
