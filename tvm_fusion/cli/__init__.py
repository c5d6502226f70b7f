"""The command line.

``dispatch``     parse, run a command, turn a mistake into one sentence and an exit code
``commands``     one file a command
``model``        options that say which model, for what, and how
``inputs``       options that give a model's inputs; arrays of files
``executable``   an artifact to run, or a model that is compiled for it
``notes``        an artifact's decisions in a few lines
"""

import gc
import sys
from collections.abc import Sequence
from typing import Any, cast

from .. import _interrupt

# Compiling makes millions of small objects and hardly a cycle: with Python's 700, the collector
# takes 4 % of the time, and 3 % with 100,000.
_COLLECT_AFTER = 5_000_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    arguments
        What stands behind the program's name; ``sys.argv`` when omitted.

    Returns
    -------
    int
        Exit code: 0, or 1 when a check did not pass, or 2 for a user's mistake, or 130 after an
        interrupt, or 141 when nobody reads the results any more.
    """
    if _interrupt.is_command_line():
        _interrupt.end_at_once()  # before the imports that take time
        prepare_process()
    from .dispatch import dispatch

    code = dispatch(arguments)
    if _interrupt.is_command_line():
        _interrupt.leave(code)
    return code


def prepare_process() -> None:
    """Save time that a process of ONNX models alone need not spend; before TVM is imported."""
    gc.set_threshold(_COLLECT_AFTER)
    # apache-tvm-ffi imports PyTorch wherever it is installed, which takes a second.
    cast("dict[str, Any]", sys.modules).setdefault("torch", None)


__all__ = ["main"]
