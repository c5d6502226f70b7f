"""Judge cases in forked processes: a crash or a hang costs one case and is a finding."""

import faulthandler
import os
import pickle
import resource
import signal
import struct
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

from tvm_fusion.measure.isolate import is_readable, keep_temporary_files_in

SECONDS = 10  # of the processor, for one case
MEMORY = 8 << 30  # address space of a worker
CASES = 300  # of one worker, after which a fresh one starts


@dataclass(frozen=True)
class Verdict:
    """How a case ended."""

    # ``passed``, ``refused`` (by one sentence), or what went wrong; cases of equal outcome are
    # taken to have one cause.
    outcome: str
    detail: str  # the sentence, or a traceback
    # Lines that no earlier case reached: file and number.
    covered: frozenset[tuple[str, int]] = frozenset()

    @property
    def is_finding(self) -> bool:
        """Whether this must not happen."""
        return self.outcome not in ("passed", "refused")


class Server:
    """Runs cases one after the other in a forked worker.

    Parameters
    ----------
    subject
        Takes a case's bytes; returns, or raises an error of ``refusals``.
    refusals
        What a bad input has to raise.
    measured
        Part of the paths of files whose lines count as coverage.
    """

    def __init__(self, subject: Callable[[bytes], Any], refusals: type[Exception], measured: str):
        self.subject, self.refusals, self.measured = subject, refusals, measured
        self.known: set[tuple[str, int]] = set()
        self._worker: tuple[int, int, int] | None = None
        self._left = 0

    def judge(self, case: bytes) -> Verdict:
        """Run one case."""
        if self._worker is None or not self._left:
            self.close()
            self._start()
        assert self._worker is not None
        process, requests, answers = self._worker
        self._left -= 1
        os.write(requests, struct.pack("<Q", len(case)))
        _write(requests, case)
        begin, start = _cpu_seconds(process), time.monotonic()
        while not is_readable(answers, 0.5):
            used = _cpu_seconds(process) - begin
            if used > SECONDS or time.monotonic() - start > 100 * SECONDS:
                self.close(signal.SIGKILL)
                return Verdict("hang", f"{used:.0f} s of the processor")
        size = _read(answers, 8)
        if len(size) < 8:
            status = self.close()
            name = signal.Signals(status & 127).name if status & 127 else f"exit {status >> 8}"
            return Verdict(f"crash {name}", name)
        verdict: Verdict = pickle.loads(_read(answers, struct.unpack("<Q", size)[0]))
        self.known |= verdict.covered
        return verdict

    def close(self, number: int = signal.SIGTERM) -> int:
        """End the worker; returns its status."""
        if self._worker is None:
            return 0
        process, requests, answers = self._worker
        self._worker = None
        os.close(requests)
        os.close(answers)
        if number == signal.SIGKILL:
            os.kill(process, number)
        status = os.waitpid(process, 0)[1]
        self._folder.cleanup()
        return status

    def _start(self) -> None:
        to_child, to_parent = os.pipe(), os.pipe()
        self._folder = tempfile.TemporaryDirectory()
        process = os.fork()
        if process == 0:
            keep_temporary_files_in(self._folder.name)
            os.close(to_child[1])
            os.close(to_parent[0])
            try:
                self._serve(to_child[0], to_parent[1])
            finally:
                os._exit(0)
        os.close(to_child[0])
        os.close(to_parent[1])
        self._worker, self._left = (process, to_child[1], to_parent[0]), CASES

    def _serve(self, requests: int, answers: int) -> None:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        faulthandler.disable()  # the verdict tells what the worker died of
        silent = os.open(os.devnull, os.O_RDWR)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        while len(size := _read(requests, 8)) == 8:
            verdict = self._run(_read(requests, struct.unpack("<Q", size)[0]))
            data = pickle.dumps(verdict)
            os.write(answers, struct.pack("<Q", len(data)))
            _write(answers, data)

    def _run(self, case: bytes) -> Verdict:
        seen: set[tuple[str, int]] = set()
        outcome, detail = "passed", ""

        def local(frame: FrameType, event: str, _arg: Any) -> Any:
            seen.add((frame.f_code.co_filename, frame.f_lineno))
            return local

        def trace(frame: FrameType, _event: str, _arg: Any) -> Any:
            return local if self.measured in frame.f_code.co_filename else None

        sys.settrace(trace)
        try:
            self.subject(case)
        except self.refusals as error:
            outcome, detail = "refused", str(error)
        except BaseException as error:
            outcome, detail = _signature(error), traceback.format_exc()[-6000:]
        finally:
            sys.settrace(None)
        if outcome == "refused" and (fault := fault_of(detail)):
            outcome = fault
        covered = frozenset(seen - self.known)
        self.known |= covered
        return Verdict(outcome, detail, covered)


def fault_of(sentence: str) -> str | None:
    """Say what is wrong with a refusal that should be one readable sentence."""
    if len(sentence.splitlines()) != 1:
        return "sentence of several lines"
    if not sentence.endswith("."):
        return "sentence without an end"
    if len(sentence) > 6000:
        return "sentence too long"
    if not sentence.isprintable():
        return "sentence with control characters"
    return "sentence with an object" if " object at 0x" in sentence else None


def _signature(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if "tvm_fusion/" in f.filename] or frames
    last = own[-1]
    return f"{type(error).__name__} in {last.filename.rpartition('tvm_fusion/')[2]}:{last.name}"


def _cpu_seconds(process: int) -> float:
    with open(f"/proc/{process}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _write(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


def _read(file: int, size: int) -> bytes:
    data = b""
    while len(data) < size:
        block = os.read(file, size - len(data))
        if not block:
            break
        data += block
    return data
