"""Bundle: write a folder that runs an artifact without Python."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    parser.add_argument("artifact", help="a folder that `tvm-fusion compile` wrote")
    parser.add_argument("-o", "--output", required=True, metavar="FOLDER", help="a new folder")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Build the runner and put it beside the artifact.

    Returns
    -------
    dict
        ``folder``, ``command`` (how to run it there) and ``bytes``.
    """
    from ..deploy.build.bundle import MODEL, RUNNER, bundle

    folder = bundle(Path(options.artifact), Path(options.output))
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return {"folder": str(folder), "command": f"{folder}/{RUNNER} {folder}/{MODEL}", "bytes": size}


def show(result: dict[str, Any], console: Console) -> None:
    """Say what is there and how to run it."""
    console.print(f"{result['folder']}: {result['bytes'] / 1e6:.1f} MB", markup=False)
    console.print(f"  run it: {result['command']} --help", markup=False)
