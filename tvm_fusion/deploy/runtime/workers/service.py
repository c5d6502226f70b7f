"""What a worker does when the session broadcasts a call: load its part, run it, keep its caches."""

from __future__ import annotations

import os
import pickle
import queue
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tvm_ffi

from ....core.peer_memory import WEIGHT
from ....core.shards import Shard
from ....errors import UserError
from ..tensors import as_array, to_numpy, write_into
from . import disco, nccl, shared_memory
from .peer_memory import PeerMemory
from .peers import Broken, Peers

CALL = "tvm_fusion.worker.call"
LONGEST_MESSAGE = 2048  # bytes that disco's pipes pass on in one piece whatever interrupts them
Load = Callable[[str, int, str], Any]  # by folder, rank and the SHA-256 of the manifest
_services: dict[str, Service] = {}


def register() -> None:
    """Register what sessions call, and the collective libraries."""

    def call(key: str, data: bytes, size: int) -> None:
        _services[key].call(data, size)

    tvm_ffi.register_global_func(CALL, call, override=True)
    for library in (shared_memory, nccl):
        disco.register_library(library)


class Service:
    """One worker.

    Parameters
    ----------
    key
        Of the session; this process may have worker 0 of several.
    load
        Loads the worker's part of an artifact by its folder, rank and the manifest's SHA-256.
    answer
        Takes an error, or ``None``, and the result of each call.

    Attributes
    ----------
    outgoing : queue
        Long commands, on worker 0.
    """

    def __init__(
        self,
        key: str,
        peers: Peers,
        load: Load,
        answer: Callable[[BaseException | None, Any], None],
    ) -> None:
        self._key, self._peers, self._load, self._answer = key, peers, load, answer
        self._executable: Any = None
        self._memory: PeerMemory | None = None
        self._sessions: dict[int, Any] = {}
        self.outgoing: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        _services[key] = self

    def close(self) -> None:
        """Forget the worker's part."""
        _services.pop(self._key, None)
        self._sessions.clear()
        self._executable = None
        if self._memory is not None:
            self._memory.close()

    def call(self, data: bytes, size: int) -> None:
        """Run a command; never raises, since disco would end the process.

        Parameters
        ----------
        data
            The command, pickled; empty if worker 0 has it alone.
        size
            Its bytes.
        """
        exchanges, name = self._peers.exchanges, ""
        try:
            data = bytes(data) or self._broadcast(size)
            exchanges = self._peers.exchanges
            name, args = pickle.loads(data)
            result = getattr(self, f"_{name}")(*args)
        except BaseException as error:  # disco ends the process
            # All workers find the same mistake of the user before they exchange anything, or agree.
            alone = self._peers.exchanges != exchanges and name != "start"
            if not isinstance(error, UserError) or alone:
                if not isinstance(error, (UserError, Broken)) and not self._peers.reason:
                    traceback.print_exc()
                words = error if isinstance(error, (UserError, Broken)) else repr(error)
                self._peers.fail(f"worker {self._peers.rank} failed: {words}")
            self._answer(error, None)
        else:
            self._answer(None, result)

    def _broadcast(self, size: int) -> bytes:
        """Take a long command from worker 0."""
        own = self.outgoing.get() if self._peers.rank == 0 else None
        data = np.empty(size, np.uint8)
        self._peers.broadcast(None if own is None else np.frombuffer(own, np.uint8), data)
        return data.tobytes()

    def _start(self, folder: str, sha256: str) -> None:
        """Load the artifact; all workers fail where one does."""
        disco.keep_thread_state()
        error = ""
        try:
            self._executable = self._load(folder, self._peers.rank, sha256)
        except UserError as found:
            error = str(found)
        error = self._peers.agree(error)
        if error:
            raise UserError(error)
        device = self._executable.device
        shared_memory.join(self._peers)
        if device.type == "cpu":
            disco.use_library(shared_memory.NAME, device)
        else:
            disco.use_library(nccl.NAME, device)
            communicator = nccl.join(self._peers, device)
            self._share_memory(communicator)

    def _share_memory(self, communicator: nccl.Communicator) -> None:
        """Tell kernels that write to other GPUs where their memory is."""
        addresses = self._executable.weight(WEIGHT)
        if addresses is not None:
            self._memory = PeerMemory(self._peers, self._executable.device)
            write_into(addresses, self._memory.addresses, f"weight {WEIGHT!r}")
            communicator.ending.append(self._memory.abort)

    def _run(self, function: str, inputs: Mapping[str, Any]) -> dict[str, Any]:
        shards = self._executable.manifest["workers"]["functions"][function]
        rank, size = self._peers.rank, self._peers.size
        own = dict(inputs)
        for name, entry in shards["inputs"].items():
            own[name] = Shard.of_json(entry).part(np.asarray(inputs[name]), rank, size)
        outputs = self._executable.run(own, function=function)
        for name, entry in shards["outputs"].items():
            outputs[name] = self._whole(outputs[name], Shard.of_json(entry))
        return outputs

    def _whole(self, value: Any, shard: Shard) -> np.ndarray:
        """Gather an output whose parts the workers have."""
        array = as_array(value, "", "an output")
        part = to_numpy(array) if isinstance(array, tvm_ffi.Tensor) else array
        parts = np.empty((self._peers.size, *part.shape), part.dtype)
        self._peers.all_gather(np.ascontiguousarray(part).reshape(-1), parts.reshape(-1))
        return shard.whole(list(parts))

    def _session(self, number: int, position: str) -> Any:
        self._sessions[number] = self._executable.session(position=position)
        return self._sessions[number]

    def _step(
        self, number: int, function: str, positional: tuple[Any, ...], inputs: Mapping[str, Any]
    ) -> dict[str, Any]:
        outputs: dict[str, Any] = self._sessions[number].run(function, *positional, **inputs)
        shards = self._executable.manifest["workers"]["functions"][function]["outputs"]
        for name in outputs.keys() & shards.keys():
            outputs[name] = self._whole(outputs[name], Shard.of_json(shards[name]))
        return outputs

    def _reset(self, number: int) -> None:
        self._sessions[number].reset()

    def _forget(self, number: int) -> None:
        self._sessions.pop(number, None)

    def _synchronize(self) -> None:
        self._executable.synchronize()
        self._peers.barrier()


def ending(peers: Peers) -> Callable[[BaseException | None, Any], None]:
    """Make the answer of a worker that is a process: it ends when the workers cannot go on."""

    def answer(error: BaseException | None, _result: Any) -> None:
        reason = peers.reason
        if error is not None and reason:
            print(f"tvm-fusion: worker {peers.rank} ends: {reason}", file=sys.stderr, flush=True)
            peers.close()
            sys.stdout.flush()
            os._exit(1)

    return answer
