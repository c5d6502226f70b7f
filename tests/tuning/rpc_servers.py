"""A tracker of TVM's RPC and servers of it, as processes on the loopback interface."""

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager, suppress

from tvm_fusion.errors import UserError
from tvm_fusion.tuning.rpc_bench import Tracker

KEY = "test"


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@contextmanager
def servers(count, folder):
    """Start a tracker and servers; yields the tracker and the servers' processes."""
    env = {**os.environ, "TVM_NUM_THREADS": "1"}
    if importlib.util.find_spec("cloudpickle") is None:  # TVM pickles a function of a module
        (folder / "cloudpickle.py").write_text("from pickle import *\n")
        env["PYTHONPATH"] = os.pathsep.join([str(folder), env.get("PYTHONPATH", "")])
    started = []

    def start(module, *options):
        command = [sys.executable, "-m", f"tvm.exec.{module}", "--host", "127.0.0.1", *options]
        silent = subprocess.DEVNULL
        started.append(
            subprocess.Popen(
                command, env=env, stdout=silent, stderr=silent, start_new_session=True, cwd=folder
            )
        )

    def start_tracker():
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

        def all_there():
            if tracker.servers() < count:
                raise OSError("not yet")

        _wait(all_there)
        yield tracker, started[-count:]
    finally:
        for process in started:
            kill(process)


def kill(process):
    """End a process and the worker that TVM starts for it."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _listens(port):
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def _wait(check, seconds=1200):
    end = time.monotonic() + seconds
    while True:
        try:
            return check()
        except (OSError, UserError):
            if time.monotonic() > end:
                raise
            time.sleep(0.5)
