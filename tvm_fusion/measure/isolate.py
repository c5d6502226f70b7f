"""A function run in a process of its own: no crash of a kernel or a compiler ends this one."""

import faulthandler
import math
import os
import pickle
import selectors
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar

# Waiting for descriptors of any number: ``select.select`` takes none from 1024 on.


def is_readable(descriptor: int, seconds: float | None) -> bool:
    """Wait until a descriptor has something to read, or its other end is closed.

    Parameters
    ----------
    descriptor
        Of a pipe or socket.
    seconds
        How long to wait; without an end when omitted, or infinite.

    Returns
    -------
    bool
        Whether it came to that within the time.
    """
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        return bool(selector.select(None if seconds == math.inf else seconds))


def keep_temporary_files_in(folder: str) -> None:
    """Let this process, and those that it starts, put temporary files into a folder.

    Whoever may kill it removes that folder: a killed process removes nothing.
    """
    tempfile.tempdir = os.environ["TMPDIR"] = folder


T = TypeVar("T")


class Failed(Exception):
    """What was run raised something, took too long, or its process ended; the text says which."""


def isolated(function: Callable[[], T], seconds: float | None = None) -> T:
    """Run a function in a forked child and bring its result back.

    Parameters
    ----------
    function
        Its result can be pickled. What it prints is dropped.
    seconds
        How long it may take before its process is killed.

    Raises
    ------
    Failed
        With the exception's type and first line, the signal that ended the child, or the seconds
        that were too few.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    reading, writing = os.pipe()
    with tempfile.TemporaryDirectory(prefix="tvm_fusion-") as folder:
        with _late_interrupts() as interrupt:
            child = os.fork()
            if child == 0:  # inside, where an interrupt raises nothing: it would be the parent
                keep_temporary_files_in(folder)
                _serve(function, reading, writing)
        os.close(writing)
        content, status, is_over = b"", 0, False
        try:
            interrupt()
            content, is_over = _read(reading, seconds)
        finally:
            if not is_over:  # too late, or interrupted
                os.kill(child, signal.SIGKILL)
            os.close(reading)
            _, status = os.waitpid(child, 0)
    if not is_over:
        raise Failed(f"took longer than {seconds:g} seconds")
    if os.WIFSIGNALED(status):
        raise Failed(f"ended by {signal.Signals(os.WTERMSIG(status)).name}")
    if not content:
        raise Failed(f"ended with exit code {os.waitstatus_to_exitcode(status)}")
    is_done, result = pickle.loads(content)
    if not is_done:
        raise Failed(result)
    return result


@contextmanager
def _late_interrupts() -> Iterator[Callable[[], None]]:
    """Keep interrupts while the process is copied; yields what raises them afterwards.

    Python calls functions of the logging module and others around a fork and ignores what they
    raise, an interrupt included; copying much memory takes most of the time between two trials.
    """
    handler = signal.getsignal(signal.SIGINT)
    caught: list[tuple[int, Any]] = []
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield lambda: None
        return
    signal.signal(signal.SIGINT, lambda number, frame: caught.append((number, frame)))

    def interrupt() -> None:
        if caught:
            handler(*caught[0])

    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, handler)


def _read(descriptor: int, seconds: float | None) -> tuple[bytes, bool]:
    """Read until the other end is closed, which the flag tells, or until the time is over."""
    end = None if seconds is None else time.monotonic() + seconds
    content = b""
    while True:
        left = None if end is None else max(0.0, end - time.monotonic())
        if not is_readable(descriptor, left):
            return content, False
        part = os.read(descriptor, 1 << 20)
        if not part:
            return content, True
        content += part


def _serve(function: Callable[[], T], reading: int, writing: int) -> NoReturn:
    """Be the child, to the end of its process."""
    try:
        os.close(reading)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent is told, and kills this process
        # TVM's worker threads belong to the thread that began to use them and are gone in a fork;
        # a new thread gets workers of its own.
        thread = threading.Thread(target=_report, args=(function, writing))
        thread.start()
        thread.join()
    finally:
        os._exit(0)


def _report(function: Callable[[], T], writing: int) -> None:
    faulthandler.disable()  # the parent tells what the child died of
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    try:
        content = pickle.dumps((True, function()), protocol=pickle.HIGHEST_PROTOCOL)
    except BaseException as error:  # guard: the parent raises it; a child must not go on
        lines = str(error).strip().splitlines() or [""]
        content = pickle.dumps((False, f"{type(error).__name__}: {lines[0]}"))
    with os.fdopen(writing, "wb") as pipe:
        pipe.write(content)
