"""Bundle: write a folder that runs an artifact without Python."""

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    parser.add_argument("artifact", help="a folder that `tvm-fusion compile` wrote")
    parser.add_argument("-o", "--output", required=True, metavar="FOLDER", help="a new folder")
    parser.add_argument(
        "--wheels",
        type=Path,
        metavar="FOLDER",
        help="wheels of apache-tvm and apache-tvm-ffi for the artifact's CPU, if its family is not "
        "this machine's; the runner is then built by GNU's cross compiler",
    )


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Build the runner and put it next to the artifact.

    Returns
    -------
    dict
        ``folder``, ``command`` (how to run it there) and ``bytes``.
    """
    from ...deploy.build.bundle import MODEL, RUNNER, bundle

    folder = bundle(Path(options.artifact), Path(options.output), options.wheels)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return {"folder": str(folder), "command": f"{folder}/{RUNNER} {folder}/{MODEL}", "bytes": size}


def show(result: dict[str, Any], console: Console) -> None:
    """Say what is there and how to run it."""
    console.print(f"{result['folder']}: {result['bytes'] / 1e6:.1f} MB", markup=False)
    console.print(f"  run it: {result['command']} --help", markup=False)
    console.print(f"  in CMake: find_package(tvm_fusion), CMAKE_PREFIX_PATH={result['folder']}")
