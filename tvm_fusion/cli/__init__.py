"""The command line: one file a command, each with ``add_arguments`` and ``run``."""

from __future__ import annotations

from collections.abc import Sequence

from .. import _interrupt


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    arguments : sequence of str, optional
        What stands behind the program's name; ``sys.argv`` when omitted.

    Returns
    -------
    int
        Exit code: 0, or 1 when a check did not pass, or 2 for a user's mistake, or 130 after an
        interrupt.
    """
    if _interrupt.is_command_line():
        _interrupt.end_at_once()  # before the imports that take time
    from .dispatch import dispatch

    code = dispatch(arguments)
    if code == _interrupt.EXIT_CODE and _interrupt.is_command_line():
        _interrupt.leave()
    return code


__all__ = ["main"]
