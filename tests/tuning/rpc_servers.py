"""A tracker of TVM's RPC and servers of it, as processes on the loopback interface."""

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tvm_fusion.errors import UserError
from tvm_fusion.tuning.rpc_bench import Tracker

KEY = "test"


def free_port() -> int:
    """Return a free port of the loopback interface."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


@contextmanager
def servers(count: int, folder: Path) -> Iterator[tuple[Tracker, list[subprocess.Popen[bytes]]]]:
    """Start a tracker and servers; yields the tracker and the servers' processes."""
    env = {**os.environ, "TVM_NUM_THREADS": "1"}
    if importlib.util.find_spec("cloudpickle") is None:  # TVM pickles a function of a module
        (folder / "cloudpickle.py").write_text("from pickle import *\n")
        env["PYTHONPATH"] = os.pathsep.join([str(folder), env.get("PYTHONPATH", "")])
    started: list[subprocess.Popen[bytes]] = []

    def start(module: str, *options: str) -> tuple[int, subprocess.Popen[bytes]]:
        # A port of its own: TVM's range of ports binds with SO_REUSEADDR, so two that start at
        # once both bind the same one, and the second ends as it listens.
        port = free_port()
        here = ("--host", "127.0.0.1", "--port", str(port), "--port-end", str(port + 1))
        command = [sys.executable, "-m", f"tvm.exec.{module}", *here, *options]
        silent = subprocess.DEVNULL
        process = subprocess.Popen(
            command, env=env, stdout=silent, stderr=silent, start_new_session=True, cwd=folder
        )
        started.append(process)
        return port, process

    try:
        port, process = start("rpc_tracker")
        while not _listens(port):
            if process.poll() is not None:  # somebody else has got the port
                port, process = start("rpc_tracker")
            time.sleep(0.1)
        tracker = Tracker("127.0.0.1", port, KEY)
        options = ("--tracker", f"127.0.0.1:{port}", "--key", KEY)
        workers = [start("rpc_server", *options)[1] for _ in range(count)]

        def all_there() -> None:
            for which, worker in enumerate(workers):
                if worker.poll() is not None:
                    workers[which] = start("rpc_server", *options)[1]
            if tracker.servers() < count:
                raise OSError("not yet")

        _wait(all_there)
        yield tracker, workers
    finally:
        for process in started:
            kill(process)


def kill(process: subprocess.Popen[bytes]) -> None:
    """End a process and the worker that TVM starts for it."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def _wait(check: Callable[[], None], seconds: float = 300.0) -> None:
    end = time.monotonic() + seconds
    while True:
        try:
            check()
            return
        except (OSError, UserError):
            if time.monotonic() > end:
                raise
            time.sleep(0.5)
