"""The thread pool in forked children.

TVM 0.27 keeps a pool of workers for each thread that has run a parallel kernel. ``fork`` copies the
pool and none of its workers, so that a child waits for ever for the first task that it hands out.

Here the pool starts anew in the child. The old one is destroyed, and destroying a condition
variable on which a worker slept when the process was copied waits for ever as well. Idle workers
spin for some time before they sleep: an empty task just before the fork keeps them awake while
memory is copied. A child of which that is not sure runs its kernels on the one thread it has.

So does a child of many threads: glibc takes all but the forking one for dead, keeps 40 MB of their
stacks, counts those of workers that are joined a second time, and unmaps what is more, thread
descriptors included, so that joining the next worker would be a segmentation fault. Other threads
of a child, as of :func:`tvm_fusion.measure.isolate.isolated`, have pools of their own.
"""

import ctypes
import importlib.util
import os
import resource
import threading
import time
from pathlib import Path

AWAKE_SECONDS = 0.02  # of 300,000 calls of sched_yield, which take 40 ms at least
_SPINS = "TVM_THREAD_POOL_SPIN_COUNT"
_DEFAULT_SPINS = 300_000
_KEPT_BYTES = 40 << 20  # glibc.pthread.stack_cache_size
_UNLIMITED_STACK = 2 << 20  # of a thread where `ulimit -s` is unlimited (x86-64)

_thread = threading.local()  # has_pool, is_serial, can_join, and when the last fork began
_library: list[ctypes.CDLL] = []


def has_run_kernels() -> None:
    """Note that this thread may have a pool of workers; its forked children start another."""
    if not _library:
        found = importlib.util.find_spec("tvm")
        if found is None or found.origin is None:
            return
        path = Path(found.origin).parent / "lib" / "libtvm_runtime.so"
        _library.append(ctypes.CDLL(str(path)))
        os.register_at_fork(before=_before, after_in_child=_after_in_child)
    _thread.has_pool = True


def _before() -> None:
    if not getattr(_thread, "has_pool", False):
        return
    _wake()
    _thread.can_join = _can_join()
    _thread.began = _now()


def _after_in_child() -> None:
    if not getattr(_thread, "has_pool", False) or getattr(_thread, "is_serial", False):
        return
    spins = os.environ.get(_SPINS, "")
    is_awake = not spins.isdigit() or int(spins) >= _DEFAULT_SPINS
    if is_awake and _thread.can_join and _copied() - _thread.began < AWAKE_SECONDS:
        _library[0]["_ZN3tvm7runtime9threading15ResetThreadPoolEv"]()
    else:
        _library[0]["_ZN3tvm7runtime9threading17SetMaxConcurrencyEi"](1)
        _thread.is_serial = True


def _can_join() -> bool:
    """Whether a child can join the workers: whether glibc will keep the stacks of all threads."""
    stack, _ = resource.getrlimit(resource.RLIMIT_STACK)
    size = _UNLIMITED_STACK if stack == resource.RLIM_INFINITY else stack
    workers = _library[0]["_ZN3tvm7runtime9threading14MaxConcurrencyEv"]() - 1
    others = len(os.listdir("/proc/self/task")) - 1  # all workers among them
    return bool((others + workers) * size <= _KEPT_BYTES)


def _wake() -> None:
    """Run an empty task on all workers: each waits for the others."""
    launch = _library[0].TVMBackendParallelLaunch
    launch(_library[0].TVMBackendParallelBarrier, None, 0)


def _now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _copied() -> float:
    """Tell when this process was made, which the kernel notes when memory is copied."""
    now = _now()
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        made = int(fields[19]) / os.sysconf("SC_CLK_TCK")  # field 22, starttime
    except (OSError, ValueError, IndexError):
        return now
    return made if now - 60 < made <= now else now
