"""How many threads TVM's runtime uses: one for each physical core that this process may use.

By itself TVM takes half of the logical processors of an x86 machine, hyper-threads or not, and ties
its threads to the first cores, whether the process may use them or not.
"""

import os
from pathlib import Path

_TOPOLOGY = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


def choose_threads() -> None:
    """Set ``TVM_NUM_THREADS`` and ``TVM_BIND_THREADS`` for this process.

    TVM reads them when a thread runs its first kernel. What the environment says already stays,
    ``OMP_NUM_THREADS`` included, which TVM follows as well.
    """
    if not {"TVM_NUM_THREADS", "OMP_NUM_THREADS"} & set(os.environ):
        os.environ["TVM_NUM_THREADS"] = str(physical_cores())
    os.environ.setdefault("TVM_BIND_THREADS", "0")


def team_size() -> int:
    """Return how many threads kernels run on, as :func:`choose_threads` or the user chose."""
    for name in ("TVM_NUM_THREADS", "OMP_NUM_THREADS"):
        if os.environ.get(name, "").isdigit():
            return max(1, int(os.environ[name]))
    return physical_cores()


def wants_tvm_pool() -> bool:
    """Whether the environment asks for TVM's own pool, by name or to tie threads to cores."""
    pool, binds = os.environ.get("TVM_FUSION_THREAD_POOL"), os.environ.get("TVM_BIND_THREADS")
    return pool == "tvm" or binds == "1"


def physical_cores() -> int:
    """Count the cores of the processors that this process may run on."""
    return len({_siblings(cpu) for cpu in os.sched_getaffinity(0)})


def _siblings(cpu: int) -> str:
    """Name the core of a processor by all processors of that core."""
    try:
        return Path(_TOPOLOGY.format(cpu)).read_text().strip()
    except OSError:  # containers hide parts of /sys
        return str(cpu)
