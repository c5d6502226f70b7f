"""Ctrl-C on the command line: one line and exit code 130, whatever the program is doing.

Imports take a second, and an interrupt inside of one ends in a traceback, or in another error that
an extension module makes of it. Nothing is to be cleaned up at that time, so the process ends at
once. While a command runs, an interrupt is an exception as usual: files that are half written go.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

EXIT_CODE = 130  # 128 and the number of SIGINT, as shells have it
LINE = "tvm-fusion: interrupted\n"


def is_command_line() -> bool:
    """Whether this process is ``tvm-fusion``, or ``python -m tvm_fusion.cli``."""
    arguments = sys.orig_argv
    is_module = "-m" in arguments and arguments[arguments.index("-m") + 1 :][:1] == [
        "tvm_fusion.cli"
    ]
    return is_module or os.path.basename(sys.argv[0]) == "tvm-fusion"


def end_at_once() -> None:
    """Let interrupts end the process, unless other code handles them or ignores them."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


@contextmanager
def raising() -> Iterator[list[int]]:
    """Let interrupts raise ``KeyboardInterrupt``, where they ended the process.

    Yields
    ------
    list of int
        The interrupts so far; one may arrive as another exception, or not at all.
    """
    seen: list[int] = []

    def handle(number: int, frame: Any) -> None:
        seen.append(number)
        signal.default_int_handler(number, frame)

    if signal.getsignal(signal.SIGINT) is not _end:
        yield seen
        return
    signal.signal(signal.SIGINT, handle)
    try:
        with _ignored_ones_repeated():
            yield seen
    finally:
        signal.signal(signal.SIGINT, _end)


@contextmanager
def _ignored_ones_repeated() -> Iterator[None]:
    """Repeat interrupts that come inside of a finalizer or a callback of a weak reference.

    Python ignores what these raise, with a traceback, and the command would go on.
    """
    default, timers = sys.unraisablehook, []

    def repeat(ignored: sys.UnraisableHookArgs) -> None:
        if not issubclass(ignored.exc_type, KeyboardInterrupt):
            return default(ignored)
        main = threading.main_thread().ident
        timers.append(threading.Timer(0.01, signal.pthread_kill, [main, signal.SIGINT]))
        timers[-1].start()

    sys.unraisablehook = repeat
    try:
        yield
    finally:
        sys.unraisablehook = default
        for timer in timers:  # the command has ended: its interrupts are told
            timer.cancel()


def leave(code: int) -> NoReturn:
    """Exit at once, with a code of one's own.

    Python ends its process by the signal instead where an interrupt has passed through code that an
    extension module ran, whoever caught it since, or comes while the interpreter is taken apart.
    And TVM's idle threads go on spinning for 300,000 calls of sched_yield before they look whether
    they are to end, which takes a minute where many processes want the cores.
    """
    if signal.getsignal(signal.SIGINT) is _end:  # what is left takes a moment, and is to be done
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    atexit._run_exitfuncs()  # temporary folders go
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # nobody reads it, or it is closed
            stream.flush()
    os._exit(code)


def _end(*_: Any) -> None:
    os.write(2, LINE.encode())
    os._exit(EXIT_CODE)
