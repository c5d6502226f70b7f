"""Entries to shared libraries, some twenty in one; a batch that fails is halved until it works."""

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import tvm

from .entry import Entry, LeftOut

BATCH = 20
ROOT = Path(__file__).parents[2]
_SECONDS = 900  # for one batch
Log = Callable[[str], None]
_Named = dict[str, Entry]


class Batches:
    """Compiles entries in processes of their own while the caller goes on making more.

    Parameters
    ----------
    folder
        Takes the libraries.
    target
        A target of the project, such as ``cuda:sm_90a``.
    log
        Is given a line for each batch.
    assemble
        Architecture that code of the target is assembled for: see
        :mod:`benchmarks.gpu.older_code`.
    processes
        That compile beside the caller; one more once it has nothing left to do but wait.
    size
        Entries of a library.
    seconds
        From now on, after which what is not compiled is given up.

    Attributes
    ----------
    placed : dict of Entry to (str, str)
        Library and function of each entry that was compiled, once :meth:`finish` has returned.
    failed : list of LeftOut
        The others.
    """

    def __init__(
        self,
        folder: Path,
        target: str,
        log: Log = lambda line: None,
        assemble: str | None = None,
        processes: int = 1,
        size: int = BATCH,
        seconds: float = float("inf"),
    ) -> None:
        self._folder, self._target, self._log = folder, target, log
        self._assemble, self._size = assemble, size
        self._end = time.monotonic() + seconds
        self._pool = ThreadPoolExecutor(processes + 1)
        self._turns = threading.Semaphore(processes)
        self._functions = itertools.count()
        self._batches = itertools.count(len([*folder.glob("batch*.so")]))
        self._waiting: _Named = {}
        self._futures: list[Future[None]] = []
        self.placed: dict[Entry, tuple[str, str]] = {}
        self.failed: list[LeftOut] = []

    def add(self, entry: Entry) -> None:
        """Take an entry; starts a batch when there are enough."""
        self._waiting[f"f{next(self._functions):04d}"] = entry
        if len(self._waiting) == self._size:
            self._start()

    def finish(self) -> None:
        """Compile what is left and wait for all batches."""
        self._start()
        self._turns.release()
        for future in self._futures:
            future.result()
        self._pool.shutdown()

    def _start(self) -> None:
        if self._waiting:
            # TVM's IR stays in this thread; the others see text.
            texts = {key: tvm.ir.save_json(entry.mod) for key, entry in self._waiting.items()}
            self._futures.append(self._pool.submit(self._batch, self._waiting, texts))
            self._waiting = {}

    def _batch(self, entries: _Named, texts: dict[str, str]) -> None:
        name = f"batch{next(self._batches):03d}.so"
        with self._turns:
            start = time.perf_counter()
            error, broken = self._compile(name, texts)
        took = f"{len(entries)} functions, {time.perf_counter() - start:.0f} s"
        told = f"{name}: {took}" + (f": {error}" if error else "")
        if error is None:
            for key, entry in entries.items():
                if key in broken:
                    self._lose(entry, broken[key])
                else:
                    self.placed[entry] = (name, key)
        self._log(told)
        if error is None:
            return
        if len(entries) == 1 or self._left <= 0:
            for entry in entries.values():
                self._lose(entry, error)
        else:
            keys = list(entries)
            for half in (keys[: len(keys) // 2], keys[len(keys) // 2 :]):
                self._batch({k: entries[k] for k in half}, {k: texts[k] for k in half})

    @property
    def _left(self) -> float:
        """Seconds that a batch may take from now on."""
        return min(_SECONDS, self._end - time.monotonic())

    def _lose(self, entry: Entry, reason: str) -> None:
        self._log(f"{entry.name}: compile: {reason}")
        self.failed.append(LeftOut(entry.name, entry.kind, "compile", reason))

    def _compile(self, name: str, texts: dict[str, str]) -> tuple[str | None, dict[str, str]]:
        """Run the worker; return what it died of, or which functions it could not compile."""
        folder = self._folder / name.replace(".so", ".modules")
        folder.mkdir()
        for key, text in texts.items():
            (folder / f"{key}.json").write_text(text)
        command = [sys.executable, "-m", "benchmarks.gpu_check.worker"]
        command += [str(folder), str(self._folder / name), self._target]
        command += [self._assemble] if self._assemble else []
        started = subprocess.Popen(
            command,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            output, errors = started.communicate(timeout=max(self._left, 0.1))
        except subprocess.TimeoutExpired:
            os.killpg(started.pid, signal.SIGKILL)  # compilers that it has started, too
            started.wait()
            return "the compiler took too long", {}
        finally:
            for path in folder.iterdir():
                path.unlink()
            folder.rmdir()
        if started.returncode == 0:
            return None, json.loads(output.strip().splitlines()[-1])
        lines = [line for line in errors.strip().splitlines() if line.strip()]
        useful = [line for line in lines if "error" in line.lower()] or lines or [""]
        return f"exit code {started.returncode}: {useful[-1].strip()[:300]}", {}
