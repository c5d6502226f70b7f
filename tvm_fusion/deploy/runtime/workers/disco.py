"""TVM's distributed runtime, disco, without Python's `tvm`: sessions, and what workers register.

A session broadcasts calls of packed functions to its workers. Worker 0 is a thread of this process,
the others are processes. An exception that leaves a packed function ends the whole process there,
so that functions that sessions call return errors as data.
"""

import ctypes
import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import tvm_ffi

COLLECTIVES = (
    "allreduce",
    "allgather",
    "broadcast_from_worker0",
    "scatter_from_worker0",
    "gather_to_worker0",
    "send_to_worker",
    "recv_from_worker",
    "recv_from_worker0",
    "sync_worker",
)
_EXTRA = "libtvm_runtime_extra.so"  # loaded by then
_THREAD_LOCAL = "_ZN3tvm7runtime11DiscoWorker11ThreadLocalEv"
_LONGEST_NAME = 7  # of a small string, which lies in the worker itself


class _SmallString(ctypes.Structure):
    _fields_ = (
        ("type_index", ctypes.c_int32),
        ("length", ctypes.c_uint32),
        ("text", ctypes.c_char * 8),
    )


class _Worker(ctypes.Structure):
    """TVM 0.27's ``DiscoWorker``, as far as collective libraries write to it."""

    _fields_ = (
        ("worker_id", ctypes.c_int32),
        ("local_worker_id", ctypes.c_int32),
        ("num_workers", ctypes.c_int32),
        ("num_groups", ctypes.c_int32),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ccl", _SmallString),
    )


def register_library(library: ModuleType) -> None:
    """Register the collectives of a module by its ``NAME``, as disco looks them up."""
    for name in COLLECTIVES:
        function = getattr(library, name)
        tvm_ffi.register_global_func(
            f"runtime.disco.{library.NAME}.{name}", function, override=True
        )


def use_library(name: str, device: tvm_ffi.Device) -> None:
    """Let ``runtime.disco.allreduce`` and others of this worker's thread call a library.

    Parameters
    ----------
    name
        What the library's functions are registered by: ``runtime.disco.NAME.allreduce``.
    """
    assert len(name) <= _LONGEST_NAME
    worker = this_worker()
    small_string = worker.ccl.type_index  # an empty string is one as well
    worker.ccl = _SmallString(small_string, len(name), name.encode())
    worker.device_type, worker.device_id = device.dlpack_device_type(), device.index


def this_worker() -> _Worker:
    """Return disco's worker of this thread."""
    find = _library()[_THREAD_LOCAL]
    find.restype, find.argtypes = ctypes.POINTER(_Worker), []
    worker: _Worker = find().contents
    return worker


@functools.cache
def _library() -> ctypes.CDLL:
    """Return TVM's extra runtime library, which is in this process."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        path = next(line.split(maxsplit=5)[5].strip() for line in maps if _EXTRA in line)
    return ctypes.CDLL(path)


def keep_thread_state() -> None:
    """Keep Python's state of this thread, which C++ made, between the calls of functions.

    Otherwise each call begins a new one, without the thread's local variables.
    """
    ctypes.pythonapi.PyGILState_Ensure()


def process_session(size: int, create: str, entry: str) -> Any:
    """Start disco's session of processes.

    Parameters
    ----------
    size
        Workers, this process's thread included.
    create
        The packed function that starts the others.
    """
    return tvm_ffi.get_global_func("runtime.disco.SessionProcess")(size, 1, create, entry)


def on_all(session: Any, name: str) -> Callable[..., None]:
    """Return what calls a packed function on all workers and waits for none."""
    function = tvm_ffi.get_global_func("runtime.disco.SessionGetGlobalFunc")(session, name)
    call = tvm_ffi.get_global_func("runtime.disco.SessionCallPacked")

    def broadcast(*args: Any) -> None:
        call(session, 0, 0, function, *args)

    return broadcast


def synchronize(session: Any) -> None:
    """Wait until worker 0, a thread of this process, has nothing to do."""
    tvm_ffi.get_global_func("runtime.disco.SessionSyncWorker")(session, 0)
