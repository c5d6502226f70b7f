"""``tvm-fusion``: parse, dispatch, and turn a user's mistake into one sentence and exit code 2."""

from __future__ import annotations

import argparse
import json
import math
import sys
import traceback
from collections.abc import Sequence
from types import ModuleType
from typing import Any, NoReturn

from rich.console import Console

from .._interrupt import EXIT_CODE, LINE, raising
from ..errors import UserError
from . import bisect, check, compile, doctor, explain, inspect, run

COMMANDS: dict[str, ModuleType] = {
    "compile": compile,
    "run": run,
    "check": check,
    "explain": explain,
    "bisect": bisect,
    "inspect": inspect,
    "doctor": doctor,
}


def dispatch(arguments: Sequence[str] | None = None) -> int:
    """Parse the arguments and run the command that they name; see :func:`tvm_fusion.cli.main`."""
    options = _parser().parse_args(arguments)
    command = COMMANDS[options.command]
    try:
        with raising() as interrupts:
            try:
                result = command.run(options)
            except Exception:  # guard: an extension module makes another error of an interrupt
                if interrupts:
                    raise KeyboardInterrupt from None
                raise
            if interrupts:  # and it was swallowed on its way
                raise KeyboardInterrupt
    except UserError as error:
        sentence = " ".join(str(error).splitlines())
        if options.debug:
            traceback.print_exc()
        if options.json:
            print(json.dumps({"error": sentence}))
        print(f"tvm-fusion: {sentence}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(LINE, end="", file=sys.stderr)
        return EXIT_CODE
    if options.json:
        print(json.dumps(_finite(result), indent=1, allow_nan=False))
    else:
        command.show(result, Console(soft_wrap=True))
    return 0 if result.get("passed", True) else 1


def _finite(value: Any) -> Any:
    """Replace infinities and NaN, which JSON lacks, by None."""
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class _Parser(argparse.ArgumentParser):
    """A parser whose complaints are one line, like all others."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"tvm-fusion: {message}; see `{self.prog} --help`.\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
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
