"""Run artifacts in a process that has TVM's runtime and not its compiler.

Where a model is compiled, functions are there that are missing where it is loaded, and what ends
the process ends the caller. One process serves many calls; a new one takes the place of one that
died.
"""

import contextlib
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

GUARD, BYTE = 4096, 0x7B  # of float32, this byte makes 1.3e36, of integers, large ones
_MOST = 200  # artifacts of one process: TVM never unloads a library


class Died(RuntimeError):
    """The process ended, by a signal or on its own."""


class RuntimeAlone:
    """A process that loads artifacts and runs them.

    Parameters
    ----------
    environment
        Variables to set in it.
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._environment = dict(environment or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._calls, self._lock = 0, threading.Lock()

    def run(
        self,
        folder: str | os.PathLike[str],
        inputs: Mapping[str, Any],
        function: str = "main",
        guarded: bool = False,
    ) -> dict[str, np.ndarray]:
        """Load an artifact and call one of its functions.

        Parameters
        ----------
        guarded
            Whether arrays lie between :data:`GUARD` bytes that are checked after the call.

        Raises
        ------
        Died
            If that ended the process.
        UserError
            As it was raised there.
        RuntimeError
            With the text of any other exception there.
        """
        with self._lock:
            if self._calls >= _MOST:
                self.close()
            process = self._process or self._start()
            self._calls += 1
            try:
                pickle.dump((os.fspath(folder), dict(inputs), function, guarded), process.stdin)
                process.stdin.flush()
                outcome, answer = pickle.load(process.stdout)
            except (EOFError, BrokenPipeError, pickle.UnpicklingError) as error:
                code = process.wait()
                self._process = None
                raise Died(f"signal {-code}" if code < 0 else f"exit code {code}") from error
        if outcome == "refused":
            from tvm_fusion import UserError  # not above: the process imports this file first

            raise UserError(answer)
        if outcome == "failed":
            raise RuntimeError(answer)
        return answer

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
            self._process.wait()
        self._process, self._calls = None, 0

    def _start(self) -> Any:
        environment = {**os.environ, "TVM_USE_RUNTIME_LIB": "1", **self._environment}
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        self._calls = 0
        return self._process


def _run(executable: Any, inputs: Mapping[str, Any], function: str) -> dict[str, Any]:
    found: dict[str, Any] = executable.run(inputs, function=function)
    return found


def _run_guarded(executable: Any, inputs: Mapping[str, Any], function: str) -> dict[str, Any]:
    """Run with inputs and, where they are written in place, results between guards."""
    placed = {name: _between_guards(np.asarray(array)) for name, array in inputs.items()}
    given = {name: array for name, (_, array) in placed.items()}
    found = _run(executable, given, function)
    again = {name: _between_guards(np.zeros_like(array)) for name, array in found.items()}
    found = executable.run(given, function=function, out={n: a for n, (_, a) in again.items()})
    for name, (whole, array) in {**placed, **again}.items():
        around = np.concatenate([whole[:GUARD], whole[GUARD + array.nbytes :]])
        if (around != BYTE).any():
            raise ValueError(f"memory around {name} was written to")
    return found


def _between_guards(array: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    whole = np.full(array.nbytes + 2 * GUARD, BYTE, "uint8")
    inner = whole[GUARD : GUARD + array.nbytes].view(array.dtype).reshape(array.shape)
    inner[...] = array
    return whole, inner


def main() -> None:
    """Serve until the input ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    sys.path[:] = [place for place in sys.path if Path(place) != Path(__file__).parent]
    import tvm_fusion

    with contextlib.suppress(EOFError):
        while True:
            folder, inputs, function, guarded = pickle.load(sys.stdin.buffer)
            try:
                executable = tvm_fusion.load(folder)
                call = _run_guarded if guarded else _run
                found = call(executable, inputs, function)
                answer: tuple[str, Any] = "ran", {n: np.asarray(a) for n, a in found.items()}
            except tvm_fusion.UserError as error:
                answer = "refused", str(error)
            except Exception as error:  # guard: raised again where the call came from
                answer = "failed", f"{type(error).__name__}: {error}"
            pickle.dump(answer, answers)
            answers.flush()


if __name__ == "__main__":
    main()
