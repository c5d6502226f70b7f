"""Workers of one machine: data over shared memory, signals over sockets.

each worker     a socket to each other one; the same file in memory, mapped
a collective    write the own slot; send a byte to all, receive one of each; read the slots
large tensors   in pieces of a slot; two sets of slots take turns: one barrier for each piece
a worker ends   the kernel closes its sockets: who waits for it wakes up at once and ends as well
"""

import contextlib
import mmap
import os
import socket
import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import ml_dtypes  # noqa: F401  (teaches numpy the name "bfloat16")
import numpy as np

from ....words import counted

SLOT = 4 << 20  # bytes of a tensor that one barrier exchanges
_HEADER, _SETS = 4096, 2
_REDUCE: tuple[Callable[[Any, Any], Any], ...] = (
    np.add,
    np.multiply,
    np.minimum,
    np.maximum,
    np.add,
)
_AVERAGE = 4  # TVM's ReduceKind: sum, prod, min, max, avg


class Broken(RuntimeError):
    """Why the workers cannot go on: one of them ended or failed."""


def memory_size(size: int) -> int:
    """Return the bytes of the file that so many workers share; pages take memory when used."""
    return _HEADER + _SETS * size * SLOT


def connect(size: int) -> tuple[int, list[dict[int, socket.socket]]]:
    """Make the shared file, and for each worker its sockets by the other's rank."""
    memory = os.memfd_create("tvm_fusion-workers")
    os.ftruncate(memory, memory_size(size))
    sockets: list[dict[int, socket.socket]] = [{} for _ in range(size)]
    for one in range(size):
        for other in range(one):
            sockets[one][other], sockets[other][one] = socket.socketpair()
    return memory, sockets


class Peers:
    """One worker's view of all: what collectives on the host are made of.

    All methods that exchange data raise :class:`Broken` when another worker ends or fails, and
    must be called by all workers in the same order.

    Parameters
    ----------
    sockets
        By rank of each other worker.
    memory
        Descriptor of the shared file.
    """

    def __init__(self, rank: int, sockets: Mapping[int, socket.socket], memory: int) -> None:
        self.rank, self.size = rank, len(sockets) + 1
        self._sockets = dict(sockets)
        self._map = mmap.mmap(memory, memory_size(self.size))
        self._bytes = np.frombuffer(self._map, np.uint8)
        self.exchanges = 0

    @property
    def reason(self) -> str:
        """Why the workers ended; empty while they work."""
        (size,) = struct.unpack_from("<q", self._map)
        return self._map[8 : 8 + size].decode(errors="replace")

    def fail(self, reason: str) -> None:
        """End collectives on all workers, now and later; the first reason counts."""
        if not self.reason:
            text = reason.encode()[: _HEADER - 8]
            self._map[8 : 8 + len(text)] = text
            struct.pack_into("<q", self._map, 0, len(text))
        for one in self._sockets.values():
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the sockets, which the others take as this worker's end."""
        for one in self._sockets.values():
            one.close()

    @property
    def waiting(self) -> list[socket.socket]:
        """Sockets that become readable when another worker ends."""
        return list(self._sockets.values())

    def barrier(self) -> None:
        """Wait until all workers are here."""
        self.exchanges += 1
        for peer, one in self._sockets.items():
            self._try(peer, one.sendall, b".")
        for peer, one in self._sockets.items():
            if self._try(peer, one.recv, 1) != b".":
                raise self._ended(peer)

    def all_reduce(self, send: np.ndarray, kind: int, receive: np.ndarray) -> None:
        """Reduce elementwise over the workers, in the order of ranks: all get the same bits.

        Parameters
        ----------
        send, receive
            One-dimensional, of one dtype; half types are added in float32.
        kind
            TVM's ``ReduceKind``: sum, product, minimum, maximum, average.
        """
        dtype = send.dtype
        wide = np.dtype("float32") if _is_half(dtype) else dtype
        for begin, end, slots in self._pieces(send, [send] * self.size):
            total = slots[0][: (end - begin) * dtype.itemsize].view(dtype).astype(wide)
            for slot in slots[1:]:
                part = slot[: (end - begin) * dtype.itemsize].view(dtype)
                total = _REDUCE[kind](total, part.astype(wide, copy=False))
            if kind == _AVERAGE:
                total = total / self.size
            receive[begin:end] = total.astype(dtype, copy=False)

    def all_gather(self, send: np.ndarray, receive: np.ndarray) -> None:
        """Put the workers' tensors one behind the other; both are one-dimensional."""
        rows = receive.reshape(self.size, -1)
        for begin, end, slots in self._pieces(send, [send] * self.size):
            for row, slot in zip(rows, slots, strict=True):
                row[begin:end] = _elements(slot, send.dtype, end - begin)

    def broadcast(self, send: np.ndarray | None, receive: np.ndarray) -> None:
        """Copy the first worker's tensor to all."""
        for begin, end, slots in self._pieces(receive, [send] + [None] * (self.size - 1)):
            receive[begin:end] = _elements(slots[0], receive.dtype, end - begin)

    def scatter(self, send: np.ndarray | None, receive: np.ndarray) -> None:
        """Give each worker its part of the first one's tensor."""
        own = self.rank == 0 and send is not None
        parts = send.reshape(self.size, -1) if own and send is not None else None
        for begin, end, slots in self._pieces(receive, [None] * self.size, parts):
            receive[begin:end] = _elements(slots[self.rank], receive.dtype, end - begin)

    def gather(self, send: np.ndarray, receive: np.ndarray | None) -> None:
        """Put the workers' tensors one behind the other on the first one."""
        rows = None if receive is None else receive.reshape(self.size, -1)
        for begin, end, slots in self._pieces(send, [send] * self.size):
            if rows is not None and self.rank == 0:
                for row, slot in zip(rows, slots, strict=True):
                    row[begin:end] = _elements(slot, send.dtype, end - begin)

    def send(self, array: np.ndarray, peer: int) -> None:
        """Send a tensor to one worker, which must receive it."""
        self._try(peer, self._socket(peer).sendall, array.view(np.uint8).data)

    def receive(self, array: np.ndarray, peer: int) -> None:
        """Receive a tensor of one worker."""
        data, done = array.view(np.uint8).data, 0
        while done < len(data):
            count = self._try(peer, self._socket(peer).recv_into, data[done:])
            if not count:
                raise self._ended(peer)
            done += count

    def agree(self, text: str) -> str:
        """Return what the first worker that says something says; empty if none does."""
        own = np.zeros(_HEADER, np.uint8)
        said = text.encode()[:_HEADER]
        own[: len(said)] = np.frombuffer(said, np.uint8)
        rows = np.empty((self.size, _HEADER), np.uint8)
        self.all_gather(own, rows.reshape(-1))
        for row in rows:
            if row[0]:
                return row.tobytes().rstrip(b"\0").decode(errors="replace")
        return ""

    def _pieces(
        self,
        array: np.ndarray,
        sends: list[np.ndarray | None],
        parts: np.ndarray | None = None,
    ) -> Iterable[tuple[int, int, list[np.ndarray]]]:
        """Yield pieces of a tensor with all slots, which lie there until the next but one."""
        step = SLOT // array.dtype.itemsize
        own = sends[self.rank]
        for begin in range(0, array.size, step):
            end = min(begin + step, array.size)
            slots = self._slots()
            if own is not None:
                slots[self.rank][: (end - begin) * array.dtype.itemsize] = _raw(own[begin:end])
            if parts is not None:
                for slot, part in zip(slots, parts, strict=True):
                    slot[: (end - begin) * array.dtype.itemsize] = _raw(part[begin:end])
            self.barrier()
            yield begin, end, slots

    def _slots(self) -> list[np.ndarray]:
        at = _HEADER + self.exchanges % _SETS * self.size * SLOT
        return [self._bytes[at + r * SLOT : at + (r + 1) * SLOT] for r in range(self.size)]

    def _socket(self, peer: int) -> socket.socket:
        if peer not in self._sockets:
            others = ", ".join(map(str, sorted(self._sockets)))
            raise ValueError(f"worker {self.rank} cannot reach worker {peer}, but {others}")
        return self._sockets[peer]

    def _try(self, peer: int, call: Callable[[Any], Any], argument: Any) -> Any:
        try:
            return call(argument)
        except OSError as error:
            raise self._ended(peer) from error

    def _ended(self, peer: int) -> Broken:
        reason = self.reason or f"worker {peer} of {counted(self.size, 'worker')} ended"
        self.fail(reason)
        return Broken(reason)


def _is_half(dtype: np.dtype) -> bool:
    """Whether a dtype is a floating point one narrower than float32."""
    return dtype.itemsize < 4 and (dtype.kind == "f" or dtype.kind == "V")


def _raw(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).view(np.uint8)


def _elements(slot: np.ndarray, dtype: np.dtype, count: int) -> np.ndarray:
    return slot[: count * dtype.itemsize].view(dtype)
