"""Modules to shared libraries, many in one; a batch that fails is halved until it works."""

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

ROOT = Path(__file__).parents[2]
_SECONDS = 900  # for one batch
Log = Callable[[str], None]
_Named = dict[str, Path]


class Batches:
    """Compiles modules, as ``tvm.ir.save_json`` writes them, in processes of their own.

    Parameters
    ----------
    target
        A target of the project, such as ``cuda:sm_90a``.
    log
        Is given a line for each batch.
    processes
        That compile next to the caller; one more once it has nothing left to do but wait.
    size
        Modules of a library.
    seconds
        From now on, after which what is not compiled is given up.

    Attributes
    ----------
    placed : dict of Path to (str, str)
        Library and function of each file that was compiled, once :meth:`finish` has returned.
    failed : dict of Path to str
        Why the others were not.
    """

    def __init__(
        self,
        folder: Path,
        target: str,
        log: Log = lambda line: None,
        processes: int = 1,
        size: int = 20,
        seconds: float = float("inf"),
    ) -> None:
        self._folder, self._target, self._log = folder, target, log
        self._size = size
        self._end = time.monotonic() + seconds
        self._pool = ThreadPoolExecutor(processes + 1)
        self._turns = threading.Semaphore(processes)
        self._functions = itertools.count()
        self._batches = itertools.count(len([*folder.glob("batch*.so")]))
        self._waiting: _Named = {}
        self._futures: list[Future[None]] = []
        self.placed: dict[Path, tuple[str, str]] = {}
        self.failed: dict[Path, str] = {}

    def add(self, file: Path) -> None:
        """Take a module; starts a batch when there are enough."""
        self._waiting[f"f{next(self._functions):04d}"] = file
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
            self._futures.append(self._pool.submit(self._batch, self._waiting))
            self._waiting = {}

    def _batch(self, files: _Named) -> None:
        name = f"batch{next(self._batches):03d}.so"
        with self._turns:
            start = time.perf_counter()
            error, broken = self._compile(name, files)
        took = f"{len(files)} functions, {time.perf_counter() - start:.0f} s"
        told = f"{name}: {took}" + (f": {error}" if error else "")
        if error is None:
            for key, file in files.items():
                if key in broken:
                    self._lose(file, broken[key])
                else:
                    self.placed[file] = (name, key)
        self._log(told)
        if error is None:
            return
        if len(files) == 1 or self._left <= 0:
            for file in files.values():
                self._lose(file, error)
        else:
            keys = list(files)
            for half in (keys[: len(keys) // 2], keys[len(keys) // 2 :]):
                self._batch({k: files[k] for k in half})

    @property
    def _left(self) -> float:
        """Seconds that a batch may take from now on."""
        return min(_SECONDS, self._end - time.monotonic())

    def _lose(self, file: Path, reason: str) -> None:
        self._log(f"{file.stem}: compile: {reason}")
        self.failed[file] = reason

    def _compile(self, name: str, files: _Named) -> tuple[str | None, dict[str, str]]:
        """Run the worker; return what it died of, or which functions it could not compile."""
        folder = self._folder / name.replace(".so", ".modules")
        folder.mkdir()
        for key, file in files.items():
            (folder / f"{key}.json").symlink_to(file.resolve())
        command = [sys.executable, "-m", "benchmarks.prices.compile_worker"]
        command += [str(folder), str(self._folder / name), self._target]
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
