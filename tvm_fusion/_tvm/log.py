"""TVM's log lines that tell a user nothing, kept off the terminal while a command compiles.

TVM 0.27 writes them from C++ to file descriptor 2, one per gather, per power and per AMD kernel,
whatever the model does; no setting turns them off.
"""

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from typing import TextIO

_NOISE = (
    b"Fast mode segfaults when there are out-of-bounds indices",
    b"Detected pow(x, y) where y >= 3",
    b"Unable to detect ROCm version",
    b"Cannot get maximum number of threads for AMD codegen",
    b"BlockBuilder destroyed with remaining blocks",  # where an importer gave up, which is told
    b"nknown pragma",
)


@contextlib.contextmanager
def quiet_log() -> Iterator[TextIO]:
    """Hold standard error back until the end, and drop the lines listed here.

    Only for a process of our own, such as the command line: it redirects a file descriptor. Where
    there is none to redirect, nothing is held back.

    Yields
    ------
    file
        The standard error that there was, for what a user is to see meanwhile, such as progress:
        ``sys.stderr`` is held back, and no terminal.
    """
    sys.stderr.flush()
    try:
        saved = os.dup(2)
    except OSError:
        yield sys.stderr
        return
    with (
        open(saved, "w", errors="backslashreplace", buffering=1) as terminal,
        tempfile.TemporaryFile() as held,
    ):
        os.dup2(held.fileno(), 2)
        try:
            yield terminal
        finally:
            terminal.flush()
            sys.stderr.flush()
            os.dup2(saved, 2)
            held.seek(0)
            for line in held:
                if not any(noise in line for noise in _NOISE):
                    os.write(2, line)
