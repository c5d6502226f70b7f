"""The collective library ``shm``: workers of one machine without GPUs, over shared memory."""

import threading
from typing import Any

import numpy as np

from ..tensors import to_numpy
from .peers import Peers

NAME = "shm"
_here = threading.local()


def join(peers: Peers) -> None:
    """Let this thread's collectives go to these peers."""
    _here.peers = peers


def allreduce(send: Any, kind: int, _in_group: bool, receive: Any) -> None:
    """Reduce elementwise; ``kind`` is TVM's ``ReduceKind``."""
    _peers().all_reduce(_flat(send), kind, _flat(receive))


def allgather(send: Any, _in_group: bool, receive: Any) -> None:
    """Put the workers' tensors one behind the other."""
    _peers().all_gather(_flat(send), _flat(receive))


def broadcast_from_worker0(send: Any, _in_group: bool, receive: Any) -> None:
    """Copy worker 0's tensor to all."""
    _peers().broadcast(None if send is None else _flat(send), _flat(receive))


def scatter_from_worker0(send: Any, _in_group: bool, receive: Any) -> None:
    """Give each worker its part of worker 0's tensor."""
    _peers().scatter(None if send is None else _flat(send), _flat(receive))


def gather_to_worker0(send: Any, _in_group: bool, receive: Any) -> None:
    """Put the workers' tensors one behind the other on worker 0."""
    _peers().gather(_flat(send), None if receive is None else _flat(receive))


def send_to_worker(buffer: Any, receiver: int) -> None:
    """Send a tensor to another worker."""
    _peers().send(_flat(buffer), receiver)


def recv_from_worker(buffer: Any, sender: int) -> None:
    """Receive a tensor of another worker."""
    _peers().receive(_flat(buffer), sender)


def recv_from_worker0(buffer: Any) -> None:
    """Receive a tensor of worker 0."""
    _peers().receive(_flat(buffer), 0)


def sync_worker() -> None:
    """Wait for nothing: collectives on the host are done when they return."""


def _peers() -> Peers:
    peers: Peers = _here.peers
    return peers


def _flat(tensor: Any) -> np.ndarray:
    return to_numpy(tensor).reshape(-1)
