"""The command line: compile the folder that travels; keep what came back."""

import argparse
import sys

from ..harness.build_and_table import build_or_table
from .table import keep

SEED, COUNT = 6, 30


def main(arguments: list[str] | None = None) -> int:
    """Build or render; returns the exit code: 1 if anything could not be compiled."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    numbers = {"seed": (SEED, "of shapes"), "count": (COUNT, "of shapes")}
    numbers["processes"] = (2, "that compile")
    return build_or_table(parser, _build, keep, arguments, **numbers)


def _build(options: argparse.Namespace) -> list[str]:
    from .build import build

    drawn = options.seed, options.count
    return build(options.out, options.target, *drawn, options.only, options.processes)


if __name__ == "__main__":
    sys.exit(main())
