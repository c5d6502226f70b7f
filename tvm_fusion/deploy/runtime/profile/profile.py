"""Profile a function: its times joined with what the artifact tells of its kernels."""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import os
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ....device import Device, cuda_devices, host_cpu
from ....device.hip import hip_devices, open_hip
from ....errors import UserError, whole_number
from ....threads import team_size
from ..arguments import check_names, evaluate
from .bench import Bench, timed
from .calls import Call, Run
from .clocks import GpuEvents, GpuRuntime
from .result import KernelTime, Profile, Rates

if TYPE_CHECKING:
    from ..executable import Executable

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


_Group = Mapping[str, Any]  # of the manifest


def profile(
    executable: Executable, inputs: Mapping[str, Any], function: str, runs: int | None, warmup: int
) -> Profile:
    """Profile a function; see :meth:`Executable.profile`."""
    runs = None if runs is None else whole_number("runs", runs, 1)
    warmup = whole_number("warmup", warmup, 0)
    found = executable.manifest
    groups = found.get("groups", [])
    executable.function(function)  # refuses what the model does not have
    check_names(executable.signatures[function].inputs, inputs)
    launches = found["functions"][function].get("launches", [])
    bench = Bench(executable, inputs, function, titles(groups, launches), warmup)
    ends, timings = timed(bench, runs)
    extents = bench.extents()
    threads = 0 if bench.on_gpu else team_size()
    machine = rates(found["target"]["kind"], threads)
    called = launches_of_calls(bench.names, launches)
    faster = _faster_half(timings, bench.names)
    rows = _rows(faster, bench, called, groups, extents, machine)
    kernels = sum(row.us for row in rows)
    share = 0.0 if bench.on_gpu else _kernels_share(ends, timings)
    end_to_end = kernels / share if share else statistics.median(ends)
    streamed = bench.streamed_us
    # CUPTI itself makes gaps between the kernels of a graph, and events do: none in such a row.
    gaps = max(0.0, streamed - kernels) if streamed and bench.clock == "cupti" else None
    device = device_of(found["target"]["kind"]).name
    return Profile(
        found["source"],
        found["target"]["text"],
        device,
        function,
        threads,
        len(timings),
        extents,
        end_to_end,
        kernels,
        end_to_end - kernels,
        bench.launched_us,
        bench.clock,
        machine,
        rows,
        (*bench.notes, *_notes(found, device, extents)),
        gaps,
        streamed,
    )


def _kernels_share(ends: Sequence[float], timings: Sequence[Run]) -> float:
    """Tell the kernels' share of a whole call: the median over calls next to each other.

    Other processes slow neighbours alike, and what slows one of them is on either side.
    """
    sums = [sum(call.us for call in run.calls) for run in timings]
    wholes = [math.sqrt(before * after) for before, after in pairwise(ends)]
    return statistics.median(us / whole for us, whole in zip(sums, wholes, strict=True))


@dataclass
class _Row:
    """Calls of one group, in order: positions among the calls of a run."""

    group: _Group | None
    positions: list[int]


def _rows(
    runs: Sequence[Run],
    bench: Bench,
    called: Sequence[Launched],
    groups: Sequence[_Group],
    extents: Mapping[str, int],
    machine: Rates,
) -> tuple[KernelTime, ...]:
    """Join times with what the artifact tells of the kernels."""
    rows = _grouped(bench.names, groups)
    row_of = {position: number for number, row in enumerate(rows) for position in row.positions}
    spent = [[sum(run.calls[i].us for i in row.positions) for run in runs] for row in rows]
    whole = sum(map(statistics.mean, spent)) or 1.0
    return tuple(
        _row(row, us, whole, runs[0].calls, bench.sizes, called, row_of, extents, machine)
        for row, us in zip(rows, spent, strict=True)
    )


def _faster_half(runs: Sequence[Run], names: Sequence[str]) -> list[Run]:
    """Choose the runs that others disturbed least, the fastest first.

    Raises
    ------
    UserError
        If a run called other kernels than the first one, as a loop that ends by data may.
    """
    if any([call.name for call in run.calls] != names for run in runs):
        raise UserError("the runs call different kernels", "a function that calls the same in each")
    return sorted(runs, key=lambda run: run.us)[: (len(runs) + 1) // 2]


def _grouped(names: Sequence[str], groups: Sequence[_Group]) -> list[_Row]:
    """Put the calls of a group's kernels together; equal kernels may be of several groups."""
    known: dict[str, list[tuple[int, int]]] = {}
    for number, group in enumerate(groups):
        for part, name in enumerate(group["kernels"]):
            known.setdefault(name, []).append((number, part))
    rows: list[_Row] = []
    expected: list[
        tuple[int, int]
    ] = []  # groups that the present row may be of, and their next part
    for position, name in enumerate(names):
        found = known.get(name, [])
        following = [(number, part) for number, part in found if (number, part) in expected]
        if rows and following:
            rows[-1].positions.append(position)
        else:
            following = [(number, part) for number, part in found if part == 0] or found
            rows.append(_Row(None, [position]))
        rows[-1].group = groups[following[0][0]] if following else None
        expected = [(number, part + 1) for number, part in following]
    return rows


def _row(
    row: _Row,
    spent: Sequence[float],
    whole: float,
    fastest: Sequence[Call],
    sizes: Sequence[tuple[str, int]],
    called: Sequence[Launched],
    row_of: Mapping[int, int],
    extents: Mapping[str, int],
    machine: Rates,
) -> KernelTime:
    group: _Group = row.group or {}
    us = statistics.mean(spent)
    flops = evaluate(group.get("flops", 0), extents) or 0
    given = group.get("bytes")
    size = sum(sizes[i][1] for i in row.positions) if given is None else given
    dtype = group.get("dtype", "float32")
    peak = machine.peak_flops.get(dtype)
    is_priced = bool(group) and given is not None
    seconds = us / 1e6
    reads = {row_of[read] for i in row.positions for read in called[i].reads}
    return KernelTime(
        kernels=tuple(sizes[i][0] for i in row.positions),
        names=tuple(dict.fromkeys(name for i in row.positions for name in called[i].names)),
        operators=tuple(group.get("operators", ())),
        template=group.get("template", ""),
        type=group.get("type", ""),
        config=dict(group.get("config", {})),
        us=us,
        least_us=min(spent),
        start_us=fastest[row.positions[0]].start_us,
        spent_us=sum(fastest[i].us for i in row.positions),
        share=us / whole,
        predicted_us=group["us"] if is_priced else None,
        source=group["source"] if is_priced else "",
        record=group["record"] if is_priced else "",
        bytes=size,
        flops=flops,
        dtype=dtype,
        bandwidth_share=size / seconds / machine.bandwidth
        if seconds and machine.bandwidth
        else None,
        peak_share=flops / seconds / peak if seconds and peak else None,
        reads=tuple(sorted(reads - {row_of[row.positions[0]]})),
    )


class Launched(NamedTuple):
    """What the manifest tells of a call: the user's names, and positions of calls that it reads."""

    names: tuple[str, ...] = ()
    reads: tuple[int, ...] = ()


def launches_of_calls(
    kernels: Sequence[str], launches: Sequence[Mapping[str, Any]]
) -> list[Launched]:
    """Tell what the manifest knows of each call.

    Parameters
    ----------
    kernels
        Names of kernels in the order of calls.
    launches
        The manifest's: the body of a loop stands there once, and is called again and again.
    """
    known: dict[str, list[int]] = {}
    for number, launch in enumerate(launches):
        known.setdefault(launch["kernel"], []).append(number)
    called: Counter[str] = Counter()
    latest: dict[int, int] = {}  # call of a launch
    found = []
    for position, kernel in enumerate(kernels):
        if kernel not in known:
            found.append(Launched())
            continue
        number = known[kernel][called[kernel] % len(known[kernel])]
        called[kernel] += 1
        reads = [latest[read] for read in launches[number].get("reads", ()) if read in latest]
        found.append(Launched(tuple(launches[number]["names"]), tuple(reads)))
        latest[number] = position
    return found


def titles(groups: Sequence[_Group], launches: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Title the calls of each kernel: by the user's names, or else by its group's operators."""
    operators = {name: " + ".join(g["operators"]) for g in groups for name in g["kernels"]}
    found: dict[str, list[str]] = {name: [] for name in operators}
    for launch in launches:
        name = launch["kernel"]
        title = " + ".join(launch["names"]) or operators.get(name, name)
        found.setdefault(name, []).append(title)
    return {name: several or [operators[name]] for name, several in found.items()}


def _notes(found: Mapping[str, Any], device: str, extents: Mapping[str, int]) -> tuple[str, ...]:
    notes = []
    if "groups" not in found:
        notes.append("The artifact tells nothing of its kernels: compile the model again.")
    priced = found.get("priced_for", {}).get("name", device)
    if priced != device:
        notes.append(f"Expected times are for {priced}.")
    if extents:
        notes.append("Kernels of symbolic shapes have no expected time.")
    return tuple(notes)
