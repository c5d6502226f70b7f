"""The command line: one file a command, each with ``add_arguments`` and ``run``."""

from .main import main

__all__ = ["main"]
