"""``tvm-fusion``: parse, dispatch, and turn a user's mistake into one sentence and exit code 2."""

import argparse
import contextlib
import difflib
import io
import json
import os
import re
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any, NoReturn

from rich.console import Console

from .. import __version__
from .._interrupt import EXIT_CODE, LINE, raising
from .._tvm.versions import installed
from ..errors import UserError
from ..words import finite
from .commands import (
    bisect,
    bundle,
    check,
    compile,
    completion,
    doctor,
    explain,
    inspect,
    profile,
    quantize,
    run,
    tune,
)

COMMANDS: dict[str, ModuleType] = {
    "compile": compile,
    "run": run,
    "profile": profile,
    "check": check,
    "explain": explain,
    "tune": tune,
    "quantize": quantize,
    "bisect": bisect,
    "inspect": inspect,
    "bundle": bundle,
    "doctor": doctor,
    "completion": completion,
}


_OWN_PROGRESS = ("tune",)  # which shows a table of its own
DEFECT = 70  # exit code, as of sysexits.h: what failed is the program
EXIT_CODES = (
    "Exit codes: 0 success; 1 a comparison did not pass; 2 a mistake that you can put right; "
    f"{DEFECT} a defect of tvm_fusion; {EXIT_CODE} interrupted; {128 + signal.SIGPIPE} stdout "
    "was closed."
)


def dispatch(arguments: Sequence[str] | None = None) -> int:
    """Parse the arguments and run the command that they name; see :func:`tvm_fusion.cli.main`."""
    for stream in (sys.stdout, sys.stderr):  # names from files may be no text of the terminal's
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    options = _parser().parse_args(arguments)
    command = COMMANDS[options.command]
    try:
        with raising() as interrupts:
            try:
                with _progress(options):
                    result = command.run(options)
            except Exception as error:  # guard: an extension module makes another of an interrupt
                if interrupts:
                    raise KeyboardInterrupt from None
                _explain(error)
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
    except Exception as error:  # guard: a defect, told in one sentence as well
        if options.debug:
            raise
        kind = type(error).__name__
        sentence = (
            f"{options.command} failed because of a bug in tvm_fusion ({kind}); "
            "--debug shows where."
        )
        if options.json:
            print(json.dumps({"error": sentence}))
        print(f"tvm-fusion: {sentence}", file=sys.stderr)
        return DEFECT
    try:
        if options.json:
            print(json.dumps(finite(result), indent=1, allow_nan=False))
        else:
            command.show(result, _Console(soft_wrap=True))
        sys.stdout.flush()
    except OSError as error:
        return _unread(error)
    return 0 if result.get("passed", True) else 1


@contextlib.contextmanager
def _progress(options: argparse.Namespace) -> Iterator[None]:
    """Show progress on standard error, which commands may redirect meanwhile.

    With ``--json`` only on a terminal: what reads the one may take the other for a complaint.
    """
    from ..report.progress import progress

    try:
        descriptor = os.dup(2)
    except OSError:  # closed
        yield
        return
    with open(descriptor, "w", errors="backslashreplace") as terminal:
        quiet = options.quiet or (options.json and not terminal.isatty())
        with progress(terminal, quiet=quiet or options.command in _OWN_PROGRESS):
            yield


def _explain(error: Exception) -> None:
    """Raise what a machine has too little of as a mistake that can be put right.

    Places where a file is expected say more; this is for what they do not foresee.
    """
    if isinstance(error, MemoryError):
        reason = str(error) or "out of memory"
        raise UserError(f"out of memory ({reason})", None, "free some") from error
    if isinstance(error, RuntimeError) and str(error).startswith("Symlink loop"):  # of pathlib
        raise UserError(str(error).replace("Symlink loop", "symbolic links form a loop")) from error
    if isinstance(error, OSError) and error.strerror:
        where = f" {error.filename!r}" if error.filename else ""
        raise UserError(f"cannot use{where or ' a file'} ({error.strerror})") from error


def _unread(error: OSError) -> int:
    """Return the exit code where stdout cannot be written; a message unless its reader left."""
    with contextlib.suppress(OSError, ValueError):  # what is left must not be written at the end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):  # as in `... | head -1`
        return 128 + signal.SIGPIPE
    print(f"tvm-fusion: cannot write the results ({error.strerror}).", file=sys.stderr)
    return 2


class _Console(Console):
    """A console that leaves it to :func:`dispatch` what to do when nobody reads."""

    def on_broken_pipe(self) -> None:
        """Raise what rich has caught."""
        raise BrokenPipeError


class _Parser(argparse.ArgumentParser):
    """A parser whose complaints are one line, like all others."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuse ``--option=--``, of which argparse makes an empty list."""
        for argument in sys.argv[1:] if args is None else args:
            if argument.startswith("-") and argument.endswith("=--"):
                self.error(f"argument {argument[:-3]}: expected a value and not '--'")
        return super().parse_known_args(args, namespace)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Name the command's options that are nearest to an unknown one."""
        options, unknown = self.parse_known_args(args, namespace)
        if not unknown:
            return options
        own: _Parser = getattr(options, "own", self)
        message = f"unrecognized arguments: {' '.join(unknown)}"
        name = next((one for one in unknown if one.startswith("-")), "").partition("=")[0]
        if near := difflib.get_close_matches(name, own._option_string_actions, 3):
            message += f" (did you mean {' or '.join(near)}?)"
        own.error(message)

    def error(self, message: str) -> NoReturn:
        """Refuse arguments, with the nearest of several choices."""
        choice = re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message)
        if choice:
            near = difflib.get_close_matches(choice[1], re.findall(r"[\w-]+", choice[2]), 1)
            message += f"; did you mean {near[0]}?" if near else ""
        message = str(UserError(message)).removesuffix(".")  # on one line
        self.exit(2, f"tvm-fusion: {message}; see `{self.prog} --help`.\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="tvm-fusion",
        description="Compile models with TVM, fused and checked; run the results.",
        epilog=EXIT_CODES,
    )
    packages = ", ".join(f"{name} {installed(name)}" for name in ("apache-tvm", "apache-tvm-ffi"))
    parser.add_argument(
        "--version", action="version", version=f"tvm-fusion {__version__} ({packages})"
    )
    parser.set_defaults(parser=parser)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        summary = (command.__doc__ or "").partition("\n")[0].partition(": ")[2]
        sub = commands.add_parser(name, help=summary, description=summary)
        command.add_arguments(sub)
        sub.set_defaults(own=sub)
        sub.add_argument("--json", action="store_true", help="print one JSON object")
        sub.add_argument("-q", "--quiet", action="store_true", help="show no progress")
        sub.add_argument("--debug", action="store_true", help="show tracebacks")
    return parser
