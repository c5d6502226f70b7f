"""One team of threads for the kernels of all artifacts in a process.

Each CPU library has the code of a team (``toolchain/thread_team.c``); the team of the first library
that is loaded serves the others as well, and that library stays open.
"""

from __future__ import annotations

import threading

import tvm_ffi

from ...threads import wants_tvm_pool

JOIN = "tvm_fusion_thread_team"  # of a library: takes how to launch, 0 for its own, and returns it

_lock = threading.Lock()
_launch = 0  # the address of the function that runs parallel loops


def join_team(library: tvm_ffi.Module) -> bool:
    """Let a library's kernels run on the process's team.

    Returns
    -------
    bool
        False where they run on TVM's pools: the library is a GPU's, or the environment asks for it.
    """
    global _launch
    if wants_tvm_pool():
        return False
    try:
        join = library.get_function(JOIN, query_imports=True)
    except AttributeError:
        return False
    with _lock:
        _launch = join(_launch)
        return _launch != 0
