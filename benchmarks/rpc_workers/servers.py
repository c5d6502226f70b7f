"""A tracker of TVM's RPC and servers of it, as processes on the loopback interface."""

from __future__ import annotations

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

    def start(module: str, *options: str) -> None:
        command = [sys.executable, "-m", f"tvm.exec.{module}", "--host", "127.0.0.1", *options]
        silent = subprocess.DEVNULL
        started.append(
            subprocess.Popen(
                command, env=env, stdout=silent, stderr=silent, start_new_session=True, cwd=folder
            )
        )

    def start_tracker() -> int:
        port = free_port()
        start("rpc_tracker", "--port", str(port), "--port-end", str(port + 1))
        return port

    try:
        port = start_tracker()
        while not _listens(port):
            if started[-1].poll() is not None:  # somebody else has got the port
                port = start_tracker()
            time.sleep(0.1)
        tracker = Tracker("127.0.0.1", port, KEY)
        for _ in range(count):
            start("rpc_server", "--tracker", f"127.0.0.1:{port}", "--key", KEY)

        def all_there() -> None:
            if tracker.servers() < count:
                raise OSError("not yet")

        _wait(all_there)
        yield tracker, started[-count:]
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


def _wait(check: Callable[[], None], seconds: float = 1200.0) -> None:
    end = time.monotonic() + seconds
    while True:
        try:
            check()
            return
        except (OSError, UserError):
            if time.monotonic() > end:
                raise
            time.sleep(0.5)
