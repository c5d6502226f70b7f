"""Starts an engine's worker process, talks to it and tells how it ended."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, cast

import numpy as np

from tvm_fusion.measure.isolate import is_readable

from . import arrays

#: Every thread pool that an engine may bring reads one of these when it starts.
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "TVM_NUM_THREADS",
)
ROOT = Path(__file__).resolve().parents[2]


class EngineError(Exception):
    """A command failed. ``kind`` is ``failed`` or ``unavailable``; the message is the reason."""

    def __init__(self, kind: str, reason: str):
        self.kind = kind
        super().__init__(reason)


class Client:
    """One engine in its own process.

    Parameters
    ----------
    engine
        Import path ``module:function`` of its ``prepare``.
    threads
        Threads for all of the engine's pools; the process may use that many CPUs only.
    folder
        Scratch folder of this engine; holds its log and its arrays.
    timeout
        Seconds that one command may take before the process is killed.
    """

    def __init__(self, engine: str, threads: int, folder: Path, timeout: float):
        folder.mkdir(parents=True, exist_ok=True)
        self._engine, self._timeout = engine, timeout
        self._folder, self._log = folder, folder / "stderr.log"
        cpus = set(sorted(os.sched_getaffinity(0))[:threads])
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.harness.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={
                    **os.environ,
                    **dict.fromkeys(THREAD_VARIABLES, str(threads)),
                    "PYTHONPATH": path,
                },
                # A session of its own, so that closing also ends what the engine started.
                start_new_session=True,
            )
        # Inherited by every thread the engine starts; set before it has read its first command.
        os.sched_setaffinity(self._process.pid, cpus)

    def prepare(self, job: Mapping[str, Any]) -> dict[str, Any]:
        """Load or compile the model; returns ``versions`` and ``facts`` of the engine."""
        job = {**job, "folder": str(self._folder)}
        return self._call(command="prepare", engine=self._engine, job=job)

    def outputs(self) -> tuple[dict[str, np.ndarray], float]:
        """Run once; returns the outputs by name and the milliseconds that the run took."""
        path = self._folder / "outputs.npz"
        ms = self._call(command="outputs", path=str(path))["ms"]
        found = arrays.load(path)
        path.unlink()
        return found, ms

    def time(self, warmup: int, runs: int) -> list[float]:
        """Run ``warmup`` times unmeasured, then ``runs`` times; returns milliseconds of each."""
        return self._call(command="time", warmup=warmup, runs=runs)["ms"]

    def close(self) -> None:
        """End the process and whatever it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(BrokenPipeError):
                cast(IO, pipe).close()

    def _call(self, **request: Any) -> dict[str, Any]:
        # Popen types its pipes as optional; both were asked for.
        stdin, stdout = cast(IO, self._process.stdin), cast(IO, self._process.stdout)
        try:
            stdin.write(json.dumps(request).encode() + b"\n")
            stdin.flush()
        except BrokenPipeError:
            raise EngineError("failed", self._how_it_ended()) from None
        if not is_readable(stdout.fileno(), self._timeout):
            self.close()
            raise EngineError("failed", f"{request['command']}: over {self._timeout:g} s, stopped")
        line = stdout.readline()
        if not line:
            raise EngineError("failed", self._how_it_ended())
        answer = json.loads(line)
        if not answer["ok"]:
            raise EngineError(answer["kind"], answer["reason"])
        return answer

    def _how_it_ended(self) -> str:
        code = self._process.wait()
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return f"process ended: {how}" + (f" ({lines[-1][:200]})" if lines else "")
