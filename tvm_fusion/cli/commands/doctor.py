"""Doctor: show what this machine can compile for and run, what is missing, how to get it."""

import argparse
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Take no options."""


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Examine the machine.

    Returns
    -------
    dict
        ``findings``: a list of ``topic``, ``ok``, ``found``, ``advice``.
    """
    from ...report.doctor import examine

    return {"findings": [asdict(finding) for finding in examine()]}


def show(result: dict[str, Any], console: Console) -> None:
    """Print a table: what is there, and the command that brings what is not."""
    table = Table(box=None, pad_edge=False)
    for heading in ("", "topic", "found", "to get it"):
        table.add_column(heading)
    for finding in result["findings"]:
        mark = "[green]ok[/]" if finding["ok"] else "[yellow]--[/]"
        texts = (finding["topic"], finding["found"], finding["advice"] or "")
        table.add_row(mark, *map(escape, texts))  # brackets as in "tvm_fusion[cuda]" are no styles
    console.print(table)
