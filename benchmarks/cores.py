"""Cores for processes that are timed side by side: none shares a core with another."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import TypeVar

_TOPOLOGY = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
_Item = TypeVar("_Item")
_Found = TypeVar("_Found")


def core_sets(threads: int) -> list[set[int]]:
    """Return sets of processors, one of each core, for processes of so many threads.

    Half of the cores stay idle where there are enough of them: processes share caches, memory and
    the clock all the same. A machine with fewer cores than threads has one set, of all.
    """
    first: dict[str, int] = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        first.setdefault(_siblings(cpu), cpu)
    cores = list(first.values())
    if len(cores) < threads:
        return [os.sched_getaffinity(0)]
    sets = max(1, len(cores) // (2 * threads))
    return [set(cores[i * threads : (i + 1) * threads]) for i in range(sets)]


def side_by_side(
    work: Callable[[_Item, set[int]], _Found], items: Iterable[_Item], sets: Sequence[set[int]]
) -> Iterator[tuple[_Item, _Found]]:
    """Call ``work`` with each item and a set of processors that no other call has meanwhile."""
    free: SimpleQueue[set[int]] = SimpleQueue()
    for cpus in sets:
        free.put(cpus)

    def one(item: _Item) -> tuple[_Item, _Found]:
        cpus = free.get()
        try:
            return item, work(item, cpus)
        finally:
            free.put(cpus)

    with ThreadPoolExecutor(len(sets)) as pool:
        yield from pool.map(one, items)


def python(arguments: Sequence[str], variables: Mapping[str, str], cpus: set[int]) -> str:
    """Run a Python process on these processors; return what it printed.

    Raises
    ------
    RuntimeError
        If it fails: the last line of its errors.
    """
    process = subprocess.Popen(
        [sys.executable, *arguments],
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.sched_setaffinity(process.pid, cpus)  # threads come later, and inherit it
    printed, errors = process.communicate()
    if process.returncode:
        lines = errors.strip().splitlines() or [f"exit code {process.returncode}"]
        raise RuntimeError(f"running the artifact failed ({lines[-1]})")
    return printed


def _siblings(cpu: int) -> str:
    try:
        return Path(_TOPOLOGY.format(cpu)).read_text().strip()
    except OSError:  # containers hide parts of /sys
        return str(cpu)
