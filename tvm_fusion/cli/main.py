"""``tvm-fusion``: parse, dispatch, and turn a user's mistake into one sentence and exit code 2."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from rich.console import Console

from ..errors import UserError
from . import check, compile, doctor, inspect, run

COMMANDS: dict[str, ModuleType] = {
    "compile": compile,
    "run": run,
    "check": check,
    "inspect": inspect,
    "doctor": doctor,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    arguments : sequence of str, optional
        What stands behind the program's name; ``sys.argv`` when omitted.

    Returns
    -------
    int
        Exit code: 0, or 1 when a check did not pass, or 2 for a user's mistake.
    """
    options = _parser().parse_args(arguments)
    command = COMMANDS[options.command]
    try:
        result = command.run(options)
    except UserError as error:
        if options.debug:
            raise
        if options.json:
            print(json.dumps({"error": str(error)}))
        print(f"tvm-fusion: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps(result, indent=1))
    else:
        command.show(result, Console())
    return 0 if _passed(result) else 1


def _passed(result: dict[str, Any]) -> bool:
    return bool(result.get("passed", True))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tvm-fusion",
        description="Compile models with TVM, fused and checked; run the results.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        summary = (command.__doc__ or "").partition("\n")[0].partition(": ")[2]
        sub = commands.add_parser(name, help=summary, description=summary)
        command.add_arguments(sub)
        sub.add_argument("--json", action="store_true", help="print one JSON object")
        sub.add_argument("--debug", action="store_true", help="show tracebacks")
    return parser
