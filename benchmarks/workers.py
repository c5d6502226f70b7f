"""Worker processes that answer lines by lines: a crash or a hang costs one case, and is told."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from tvm_fusion.measure.isolate import is_readable

ROOT = Path(__file__).resolve().parents[1]
_LEAVING = 20.0  # seconds from the last output to the end


class Worker:
    """A Python process.

    Parameters
    ----------
    arguments
        Of the interpreter, such as ``-m`` and a module.
    environment
        Variables that differ from this process's.
    """

    def __init__(
        self, *arguments: str, environment: Mapping[str, str], folder: Path | str = ROOT
    ) -> None:
        self._errors: Any = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the process
        self._temporary = tempfile.TemporaryDirectory()  # what a killed process leaves goes, too
        self._process = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, "TMPDIR": self._temporary.name, **environment},
            cwd=folder,
        )
        self._rest = b""

    @property
    def is_over(self) -> bool:
        """Whether the process has ended."""
        return self._process.poll() is not None

    def send(self, line: str) -> None:
        """Write a line; that the process has ended is seen by what it answers."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(f"{line}\n".encode())
            self._process.stdin.flush()

    def line(self, seconds: float) -> str | None:
        """Read a line; empty where the process has ended, ``None`` where it takes too long."""
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        while b"\n" not in self._rest:
            if not is_readable(descriptor, seconds):
                return None
            chunk = os.read(descriptor, 65536)
            if not chunk:
                return ""
            self._rest += chunk
        line, self._rest = self._rest.split(b"\n", 1)
        return line.decode()

    def answer(self, seconds: float) -> dict[str, Any]:
        """Read an object as a line of JSON; under ``wrong``, why none came.

        Other lines are skipped: libraries print them.
        """
        end = time.monotonic() + seconds
        while True:
            line = self.line(max(0.0, end - time.monotonic()))
            if not line:
                return {"wrong": self.ended() if line == "" else f"no answer in {seconds:.1f} s"}
            if line.startswith("{"):
                return json.loads(line)

    def ended(self) -> str:
        """Wait for the process that has ended; says how, with its last words."""
        try:
            code = self._process.wait(_LEAVING)
        except subprocess.TimeoutExpired:  # it has closed its output, and hangs
            self._process.kill()
            code = self._process.wait()
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip().splitlines()[-1:]
        self.close()
        return ": ".join([f"the process ended with {code}", *said])

    def close(self) -> None:
        """End the process, if it is there still."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            with contextlib.suppress(BrokenPipeError):  # what was written and not sent
                stream.close()
        self._temporary.cleanup()


def share(
    items: Iterable[Any], count: int, serve: Callable[[Iterator[Any]], None]
) -> list[threading.Thread]:
    """Start threads that call ``serve`` with what of the items is not taken yet."""
    waiting = deque(items)

    def left() -> Iterator[Any]:
        with contextlib.suppress(IndexError):
            while True:
                yield waiting.popleft()

    threads = [threading.Thread(target=serve, args=(left(),), daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    return threads


def gather(
    items: Iterable[Any], count: int, serve: Callable[[Iterator[Any]], Iterator[Any]]
) -> Iterator[Any]:
    """Yield, as they come, what ``serve`` yields in some threads; what one raises is raised."""
    done: SimpleQueue[tuple[str, Any]] = SimpleQueue()

    def thread(left: Iterator[Any]) -> None:
        try:
            for result in serve(left):
                done.put(("result", result))
            done.put(("end", None))
        except BaseException as error:  # guard: raised where the results are read
            done.put(("error", error))

    running = len(share(items, count, thread))
    while running:
        kind, value = done.get()
        if kind == "error":
            raise value
        if kind == "end":
            running -= 1
        else:
            yield value
