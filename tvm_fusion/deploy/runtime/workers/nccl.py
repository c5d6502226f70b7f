"""The collective library ``nccl``: NVIDIA's, opened when the first GPU worker starts.

Calls go to the current stream of the worker's device and return at once, so that a CUDA graph
records them as it does kernels. The host's sockets carry what NCCL needs to begin, and tell when a
worker ends: NCCL's kernels would wait for it forever, so a thread aborts them.
"""

from __future__ import annotations

import ctypes
import functools
import math
import os
import select
import threading
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import tvm_ffi

from ...._tvm.cuda import load_cudart
from ....errors import UserError
from .peers import Broken, Peers

NAME = "nccl"
LIBRARY = "libnccl.so.2"
ID_BYTES = 128
LEAST_VERSION = 21800  # 2.18: bfloat16 everywhere, and collectives in CUDA graphs
_ABORTED = "NCCL was aborted"
#: ncclDataType_t by TVM's names of element types.
TYPES = {
    "int8": 0,
    "uint8": 1,
    "bool": 1,
    "int32": 2,
    "uint32": 3,
    "int64": 4,
    "uint64": 5,
    "float16": 6,
    "float32": 7,
    "float64": 8,
    "bfloat16": 9,
}
_REDUCE = (0, 1, 3, 2, 4)  # ncclRedOp_t of TVM's ReduceKind: sum, prod, min, max, avg
_here = threading.local()


class UniqueId(ctypes.Structure):
    """What NCCL calls a communicator by before there is one."""

    _fields_ = (("internal", ctypes.c_char * ID_BYTES),)


_POINTER, _SIZE, _INT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
_ARGUMENTS: dict[str, list[Any]] = {
    "ncclGetVersion": [_POINTER],
    "ncclGetUniqueId": [ctypes.POINTER(UniqueId)],
    "ncclCommInitRank": [_POINTER, _INT, UniqueId, _INT],
    "ncclCommAbort": [_POINTER],
    "ncclCommDestroy": [_POINTER],
    "ncclAllReduce": [_POINTER, _POINTER, _SIZE, _INT, _INT, _POINTER, _POINTER],
    "ncclAllGather": [_POINTER, _POINTER, _SIZE, _INT, _POINTER, _POINTER],
    "ncclBroadcast": [_POINTER, _POINTER, _SIZE, _INT, _INT, _POINTER, _POINTER],
    "ncclSend": [_POINTER, _SIZE, _INT, _INT, _POINTER, _POINTER],
    "ncclRecv": [_POINTER, _SIZE, _INT, _INT, _POINTER, _POINTER],
    "ncclGroupStart": [],
    "ncclGroupEnd": [],
}


@functools.cache
def library() -> ctypes.CDLL:
    """Open NCCL, from NVIDIA's Python package or the system.

    Raises
    ------
    UserError
        If it is missing or too old.
    """
    spec = find_spec("nvidia")
    roots = (spec and spec.submodule_search_locations) or ()
    paths = [str(Path(root, "nccl", "lib", LIBRARY)) for root in roots]
    opened = next(filter(None, map(_open, [*filter(os.path.exists, paths), LIBRARY])), None)
    if opened is None:
        raise UserError(
            f"{LIBRARY} was not found, by which workers on NVIDIA GPUs exchange tensors",
            "NCCL",
            'run `pip install "tvm_fusion[parallel]"`',
        )
    for name, arguments in _ARGUMENTS.items():
        function = getattr(opened, name)
        function.argtypes, function.restype = arguments, _INT
    opened.ncclGetErrorString.restype = ctypes.c_char_p
    version = ctypes.c_int()
    opened.ncclGetVersion(ctypes.byref(version))
    if version.value < LEAST_VERSION:
        raise UserError(
            f"NCCL has version {_text(version.value)}",
            f"{_text(LEAST_VERSION)} or newer",
            'run `pip install "tvm_fusion[parallel]"`',
        )
    return opened


def _open(name: str) -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(name)
    except OSError:
        return None


def _text(version: int) -> str:
    return f"{version // 10000}.{version // 100 % 100}.{version % 100}"


def join(peers: Peers, device: tvm_ffi.Device) -> Communicator:
    """Let this thread's collectives go through NCCL; all workers call it.

    Raises
    ------
    UserError
        On all workers where one lacks NCCL.
    Broken
        If a worker ends.
    """
    error = ""
    try:
        library()
    except UserError as found:
        error = str(found)
    error = peers.agree(error)
    if error:
        raise UserError(error)
    unique = UniqueId()
    if peers.rank == 0:
        _check(library().ncclGetUniqueId(ctypes.byref(unique)), "ncclGetUniqueId")
    data = np.frombuffer(memoryview(unique).cast("B"), np.uint8)
    peers.broadcast(data.copy() if peers.rank == 0 else None, data)
    _set_device(device)
    _here.communicator = Communicator(peers, unique)
    return _all()


class Communicator:
    """NCCL's communicator of one worker.

    Attributes
    ----------
    ending : list of callable
        Called from another thread when a worker ends.
    """

    def __init__(self, peers: Peers, unique: UniqueId) -> None:
        self.peers, self._handle, self._lock = peers, ctypes.c_void_p(), threading.Lock()
        self.ending: list[Callable[[], None]] = []
        init = library().ncclCommInitRank
        made = init(ctypes.byref(self._handle), peers.size, unique, peers.rank)
        _check(made, "ncclCommInitRank")
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        """Abort when a worker's socket closes; nothing else is sent while models run."""
        sockets = self.peers.waiting
        poll = select.poll()
        for one in sockets:
            poll.register(one.fileno(), select.POLLRDHUP | select.POLLHUP)
        poll.poll()
        for call in self.ending:
            call()
        with self._lock:
            handle, self._handle = self._handle, ctypes.c_void_p()
            if handle:
                library().ncclCommAbort(handle)

    def call(self, name: str, *args: Any) -> None:
        """Call a collective on the current stream.

        Raises
        ------
        Broken
            If a worker has ended.
        RuntimeError
            What NCCL says is wrong.
        """
        if not self._handle:
            raise Broken(self.peers.reason or _ABORTED)
        _check(getattr(library(), name)(*args, self._handle, _stream()), name)


def _check(code: int, name: str) -> None:
    if code:
        text = library().ncclGetErrorString(code)
        raise RuntimeError(f"{name}: {text.decode() if text else code}")


def _stream() -> Any:
    current = tvm_ffi.get_global_func("runtime.get_cuda_stream")()
    return getattr(current, "value", current)


def _set_device(device: tvm_ffi.Device) -> None:
    """Make the worker's GPU the one that CUDA's calls of this thread mean."""
    code = load_cudart().cudaSetDevice(device.index)
    if code:
        raise UserError(f"CUDA device {device.index} cannot be used (error {code})")


def allreduce(send: Any, kind: int, _in_group: bool, receive: Any) -> None:
    """Reduce elementwise; ``kind`` is TVM's ``ReduceKind``."""
    _all().call("ncclAllReduce", *_pair(send, receive), _REDUCE[kind])


def allgather(send: Any, _in_group: bool, receive: Any) -> None:
    """Put the workers' tensors one behind the other."""
    _all().call("ncclAllGather", *_pair(send, receive))


def broadcast_from_worker0(send: Any, _in_group: bool, receive: Any) -> None:
    """Copy worker 0's tensor to all."""
    source = receive if send is None else send
    first, _, _, _ = _pair(source, receive)
    _all().call("ncclBroadcast", first, *_pair(receive, receive)[1:], 0)


def scatter_from_worker0(send: Any, _in_group: bool, receive: Any) -> None:
    """Give each worker its part of worker 0's tensor."""
    own = _all()
    _check(library().ncclGroupStart(), "ncclGroupStart")
    if own.peers.rank == 0:
        for peer in range(own.peers.size):
            own.call("ncclSend", *_part(send, peer, own.peers.size), peer)
    own.call("ncclRecv", *_part(receive, 0, 1), 0)
    _check(library().ncclGroupEnd(), "ncclGroupEnd")


def gather_to_worker0(send: Any, _in_group: bool, receive: Any) -> None:
    """Put the workers' tensors one behind the other on worker 0."""
    own = _all()
    _check(library().ncclGroupStart(), "ncclGroupStart")
    if own.peers.rank == 0:
        for peer in range(own.peers.size):
            own.call("ncclRecv", *_part(receive, peer, own.peers.size), peer)
    own.call("ncclSend", *_part(send, 0, 1), 0)
    _check(library().ncclGroupEnd(), "ncclGroupEnd")


def send_to_worker(buffer: Any, receiver: int) -> None:
    """Send a tensor to another worker."""
    _all().call("ncclSend", *_part(buffer, 0, 1), receiver)


def recv_from_worker(buffer: Any, sender: int) -> None:
    """Receive a tensor of another worker."""
    _all().call("ncclRecv", *_part(buffer, 0, 1), sender)


def recv_from_worker0(buffer: Any) -> None:
    """Receive a tensor of worker 0."""
    recv_from_worker(buffer, 0)


def sync_worker() -> None:
    """Wait for nothing: results are copied on the stream that collectives run on."""


def _all() -> Communicator:
    communicator: Communicator = _here.communicator
    return communicator


def _pair(send: Any, receive: Any) -> tuple[int, int, int, int]:
    """Return the addresses of both, the elements of the first and their type."""
    address, count, type_ = _part(send, 0, 1)
    return address, receive.data_ptr(), count, type_


def _part(tensor: Any, part: int, parts: int) -> tuple[int, int, int]:
    """Return the address of one of equal parts, its elements and their type."""
    dtype = tensor.dtype
    if str(dtype) not in TYPES:
        raise RuntimeError(f"NCCL has no type {dtype}")
    count = math.prod(tensor.shape) // parts
    return tensor.data_ptr() + part * count * dtype.itemsize, count, TYPES[str(dtype)]
