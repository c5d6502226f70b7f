"""Completion: write the script that completes commands, options and files in a shell."""

import argparse
from typing import Any

from rich.console import Console

SHELLS = ("bash", "zsh", "fish")
_FILES, _FOLDERS = ("model", "db", "inputs", "import_"), ("artifact", "dump", "cache")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    parser.add_argument(
        "shell", choices=SHELLS, help='for this one; as in eval "$(tvm-fusion completion bash)"'
    )


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Write the script.

    Returns
    -------
    dict
        ``shell`` and ``script``.
    """
    import shtab

    for command in _commands(options.parser):
        for action in command._actions:
            if action.dest in _FILES:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
            elif action.dest in _FOLDERS:
                action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
    script = shtab.complete(options.parser, options.shell)
    return {"shell": options.shell, "script": script}


def show(result: dict[str, Any], console: Console) -> None:
    """Print the script as it is."""
    console.out(result["script"], highlight=False)


def _commands(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    (choice,) = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    return list(choice.choices.values())
