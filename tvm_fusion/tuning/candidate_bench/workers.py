"""A process that measures, as the one that asks it sees it: a line of JSON each way."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PARENT = Path(__file__).resolve().parent.parent
PACKAGE = Path(__file__).resolve().parent.name


class Failed(Exception):
    """A measurement raised something, or its process ended; the text says which."""


class TooSlow(Failed):
    """There is no answer within the time."""


class Worker:
    """A process of :mod:`.worker`.

    Attributes
    ----------
    is_ready : bool
        Whether the device can be used, as far as it has said so.
    prepared : int or None
        The task that it has prepared.
    is_used : bool
        Whether it has measured a candidate.
    """

    def __init__(self, folder: Path) -> None:
        self.is_ready, self.is_used = False, False
        self.prepared: int | None = None
        start = f"from {PACKAGE}.worker import main; main({str(folder.resolve())!r})"
        self._process = subprocess.Popen(
            [sys.executable, "-c", start],
            cwd=PARENT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._rest = b""

    def wait_until_ready(self, seconds: float) -> None:
        """Wait until the device can be used.

        Raises
        ------
        Failed
            If it cannot.
        """
        if not self.is_ready:
            self._answer(seconds)
            self.is_ready = True

    def ask(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Send a request and wait for the answer.

        Raises
        ------
        TooSlow
            If there is none in time; the process still runs.
        Failed
            If the answer is an error, or the process has ended.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise Failed(self._end()) from None
        return self._answer(seconds)

    def kill(self) -> None:
        """End the process at once, whatever it does."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):  # of what was not sent yet
                pipe.close()

    def _answer(self, seconds: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        descriptor, end = self._process.stdout.fileno(), time.monotonic() + seconds
        while b"\n" not in self._rest:
            left = max(0.0, end - time.monotonic())
            if not _is_readable(descriptor, left):
                raise TooSlow(f"took longer than {seconds:g} seconds")
            part = os.read(descriptor, 1 << 16)
            if not part:
                raise Failed(self._end())
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\n")
        answer = json.loads(line)
        if "error" in answer:
            raise Failed(answer["error"])
        return answer

    def _end(self) -> str:
        """Say how the process has ended."""
        code = self._process.wait()
        return f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"


def _is_readable(descriptor: int, seconds: float) -> bool:
    """Wait for an answer; ``select.select`` takes no descriptors from 1024 on."""
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        return bool(selector.select(seconds))
