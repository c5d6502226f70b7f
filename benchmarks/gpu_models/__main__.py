"""The command line: compile the folder that travels; keep what came back."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from .table import keep


def main(arguments: list[str] | None = None) -> int:
    """Build or render; returns the exit code: 1 if anything could not be compiled."""
    options = _parser().parse_args(arguments)
    if options.command == "table":
        keep(json.loads(options.result.read_text()))
        return 0
    from .build import build

    failed = build(options.out, options.target, options.only)
    print("\n".join(f"{name}: {reason}" for name, reason in failed.items()), file=sys.stderr)
    return int(bool(failed))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_models", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    build = commands.add_parser("build", help="compile all models into a folder")
    build.add_argument("--out", type=Path, required=True)
    build.add_argument("--target", default="cuda:sm_90a")
    build.add_argument("--only", nargs="*", default=[], help="parts of names")
    table = commands.add_parser("table", help="render what benchmarks.gpu_models.run wrote")
    table.add_argument("result", type=Path)
    return parser


if __name__ == "__main__":
    sys.exit(main())
