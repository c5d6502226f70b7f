"""The command line of benchmarks that are compiled here, run where a GPU is, and kept here."""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def build_or_table(
    parser: argparse.ArgumentParser,
    build: Callable[[argparse.Namespace], list[str]],
    keep: Callable[[Any], None],
    arguments: list[str] | None = None,
    **numbers: tuple[int, str],
) -> int:
    """Build or render; returns the exit code: 1 if anything could not be compiled.

    Parameters
    ----------
    build
        Compiles into the folder that travels; gives what failed, and why.
    keep
        Keeps what came back, and renders it.
    arguments
        Instead of those of the process.
    **numbers
        More options of ``build``: default and help.
    """
    commands = parser.add_subparsers(dest="command", required=True)
    option = commands.add_parser("build", help="compile all into a folder").add_argument
    option("--out", type=Path, required=True)
    option("--target", default="cuda:sm_90a")
    option("--only", nargs="*", default=[], help="parts of names")
    for name, (default, text) in numbers.items():
        option(f"--{name}", type=int, default=default, help=f"{text} (default: %(default)s)")
    table = commands.add_parser("table", help="render the JSON file that the run wrote")
    table.add_argument("result", type=Path)
    options = parser.parse_args(arguments)
    if options.command == "table":
        keep(json.loads(options.result.read_text()))
        return 0
    failed = build(options)
    print("\n".join(failed), file=sys.stderr)
    return int(bool(failed))
