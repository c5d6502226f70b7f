"""Worker processes: started as disco asks for them, and watched."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

import tvm_ffi

from ....threads import team_size

CREATE = "tvm_fusion.worker.create"
ENTRY = "tvm_fusion.deploy.runtime.worker"


class Processes:
    """The processes of a session's workers from 1.

    Parameters
    ----------
    sockets
        By rank, each worker's sockets; those of the processes are closed here once they run.
    memory
        Descriptor of the shared file.
    ended
        Called from another thread with a sentence when a process ends that should not.
    """

    def __init__(
        self,
        key: str,
        sockets: list[dict[int, socket.socket]],
        memory: int,
        ended: Callable[[str], None],
    ) -> None:
        self._key, self._sockets, self._memory, self._ended = key, sockets, memory, ended
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._pipes: list[int] = []  # this process's ends, which disco does not close
        self._lock = threading.Lock()
        self._closing = False

    def pool(self) -> Callable[[int], Any]:
        """Return what disco calls with the rank of each worker to start, and 0 in the end."""

        def start(rank: int) -> Any:
            return tvm_ffi.Shape(self._start(rank)) if rank else None

        return start

    def _start(self, rank: int) -> tuple[int, int]:
        from_worker, worker_writes = os.pipe()
        worker_reads, to_worker = os.pipe()
        own = {peer: one.fileno() for peer, one in self._sockets[rank].items()}
        told = {
            "key": self._key,
            "rank": rank,
            "size": len(self._sockets),
            "sockets": own,
            "memory": self._memory,
            "pipe": [worker_reads, worker_writes],
        }
        command = [sys.executable, "-m", ENTRY, json.dumps(told)]
        passed = (*own.values(), self._memory, worker_reads, worker_writes)
        process = subprocess.Popen(
            command, pass_fds=passed, env=self._environment(), stdin=subprocess.DEVNULL
        )
        os.close(worker_writes)
        for one in self._sockets[rank].values():
            one.close()
        self._processes[rank] = process
        self._pipes += (from_worker, to_worker)
        watch = threading.Thread(
            target=self._watch, args=(rank, process, worker_reads), daemon=True
        )
        watch.start()
        return from_worker, to_worker

    def _environment(self) -> Mapping[str, str]:
        """Share the cores, and let the process find what this one imports."""
        threads = max(1, team_size() // len(self._sockets))
        path = os.pathsep.join(entry for entry in sys.path if entry)
        return {**os.environ, "TVM_NUM_THREADS": str(threads), "PYTHONPATH": path}

    def _watch(self, rank: int, process: subprocess.Popen[bytes], worker_reads: int) -> None:
        """Wait for a process, and read its pipe in its place from then on.

        Disco writes there when objects go, and ends this process when nobody reads.
        """
        code = process.wait()
        with self._lock:
            unexpected = not self._closing
        if unexpected:
            how = f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"
            self._ended(f"worker {rank} of {len(self._sockets)} workers ended ({how})")
        while os.read(worker_reads, 1 << 16):
            pass
        os.close(worker_reads)

    def stop_watching(self) -> None:
        """Take ends of processes for what they should do."""
        with self._lock:
            self._closing = True

    def close(self, kill: bool) -> None:
        """Wait until the processes have ended, or end them."""
        self.stop_watching()
        for process in self._processes.values():
            if kill:
                process.kill()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for descriptor in (*self._pipes, self._memory):
            os.close(descriptor)
        self._pipes = []


def register(pools: Mapping[str, Processes]) -> None:
    """Register what disco calls to start the workers of a session, by the session's key."""

    def create(_size: int, _groups: int, key: str) -> Any:
        return pools[key].pool()

    tvm_ffi.register_global_func(CREATE, create, override=True)
