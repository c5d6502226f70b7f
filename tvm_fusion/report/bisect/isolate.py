"""A function run in a process of its own: no crash of a kernel or a compiler ends this one."""

from __future__ import annotations

import faulthandler
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Failed(Exception):
    """What was run raised something, or its process ended; the text says which."""


def isolated(function: Callable[[], T]) -> T:
    """Run a function in a forked child and bring its result back.

    Parameters
    ----------
    function : callable
        Its result can be pickled. What it prints is dropped.

    Returns
    -------
    object
        The function's result.

    Raises
    ------
    Failed
        With the exception's type and first line, or the signal that ended the child.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        # TVM's worker threads belong to the thread that began to use them and are gone in a fork;
        # a new thread gets workers of its own.
        thread = threading.Thread(target=_report, args=(function, writing))
        thread.start()
        thread.join()
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        content = pipe.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        raise Failed(f"ended by {signal.Signals(os.WTERMSIG(status)).name}")
    if not content:
        raise Failed(f"ended with exit code {os.waitstatus_to_exitcode(status)}")
    is_done, result = pickle.loads(content)
    if not is_done:
        raise Failed(result)
    return result


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
