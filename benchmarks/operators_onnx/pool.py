"""Worker processes: a case that crashes or hangs ends its worker, and nothing else."""

from __future__ import annotations

import json
import os
import queue
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
Verdict = tuple[str, str]


class Worker:
    """One process; a new one takes its place when it dies or is too slow."""

    def __init__(self, engine: str, timeout: float):
        self._engine, self._timeout = engine, timeout
        self._process: subprocess.Popen[str] | None = None

    def judge(self, name: str) -> Verdict:
        """Return the verdict of a case, ``crash`` or ``hang`` where the process ended or stayed."""
        if self._process is None:
            self._start()
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{name}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass
        line = self._line(self._timeout)
        if line is None:
            self.close()
            return "hang", f"longer than {self._timeout:g} s"
        if not line:
            code = self._process.wait()
            self.close()
            return "crash", f"the process ended with {code}"
        verdict, reason = json.loads(line)
        return verdict, reason

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for stream in (self._process.stdin, self._process.stdout):
                if stream is not None:
                    stream.close()
            self._process = None

    def _start(self) -> None:
        with tempfile.TemporaryFile() as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.operators_onnx.worker", self._engine],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=ROOT,
                env={**os.environ, "TVM_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
            )
        if self._line(300) != "ready\n":
            self.close()
            raise RuntimeError("a worker did not start")

    def _line(self, seconds: float) -> str | None:
        """Read a line; None where it takes too long, empty at the end of the stream."""
        assert self._process is not None
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], seconds)
        return self._process.stdout.readline() if ready else None


def judge_all(
    names: Iterable[str],
    engine: str,
    workers: int = 2,
    timeout: float = 60,
    log: Callable[[str], None] = lambda line: None,
) -> dict[str, Verdict]:
    """Judge cases in parallel.

    Parameters
    ----------
    names : iterable of str
        Names of cases.
    engine : str
        ``ours`` or ``stock``.
    workers : int
        Processes.
    timeout : float
        Seconds that one case may take.
    log : callable
        Told about each case that is neither right nor refused, and every hundredth.
    """
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    names = list(names)
    for name in names:
        waiting.put(name)
    results: dict[str, Verdict] = {}
    start = time.perf_counter()

    def serve() -> None:
        worker = Worker(engine, timeout)
        try:
            while True:
                try:
                    name = waiting.get_nowait()
                except queue.Empty:
                    return
                results[name] = worker.judge(name)
                verdict, reason = results[name]
                if verdict not in ("right", "refused") or len(results) % 100 == 0:
                    spent = time.perf_counter() - start
                    log(f"{spent:6.0f} s {len(results):5} {verdict:7} {name}: {reason}")
        finally:
            worker.close()

    threads = [threading.Thread(target=serve) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {name: results[name] for name in names if name in results}
