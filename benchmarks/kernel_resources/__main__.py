"""The command line: claims of the zoo's groups for one CUDA device against ptxas.

Writes ``results/kernel_resources.json.xz`` and ``README.md``; prints the table, misses and spills.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import astuple
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks import zoo
from benchmarks.harness import environment
from benchmarks.records import read, write
from tvm_fusion.device import parse
from tvm_fusion.errors import UserError

from .claims import ClaimedGroup, Survey, graphs
from .machine_code import machine_code
from .table import render, summary

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RESULT, README = HERE / "results" / "kernel_resources.json.xz", HERE / "README.md"
MODELS = tuple(n for n in zoo.names() if not n.startswith("light_") and not n.endswith("_dyn"))
WORKS = 6  # that are drawn, beside the named ones
BATCH = 24  # functions that nvcc compiles at once
SCHEMA = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Compile and compare; returns the exit code."""
    options = _parser().parse_args(arguments)
    if options.table:
        README.write_text(render(read(RESULT)))
        return 0
    try:
        spec = parse(options.target)
        if spec.kind != "cuda" or len(spec.archs) != 1:
            raise UserError(f"target {options.target!r}", "one CUDA architecture")
        survey = Survey(spec)
        for name, mod in graphs(options.models, options.works, options.seed):
            survey.add(name, mod)
            print(f"{name}: {len(survey.groups)} distinct groups", file=sys.stderr, flush=True)
        rows = list(_rows(survey.groups, spec))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    record: dict[str, Any] = {
        "schema": SCHEMA,
        "environment": environment.describe(ROOT),
        "target": options.target,
        "groups": rows,
    }
    print(summary(record))
    if options.json == RESULT:
        write(RESULT, record)
        README.write_text(render(record))
    elif options.json is not None:
        write(options.json, record)
    return 0


def _rows(groups: Sequence[ClaimedGroup], spec: Any) -> Iterator[dict[str, Any]]:
    """Compile the kernels of all groups, and yield a row for each group."""
    functions = {
        f"g{number}k{position}": func
        for number, group in enumerate(groups)
        for position, func in enumerate(group.functions)
    }
    found: dict[int, list[tuple[int, ...]]] = {}
    items = iter(functions.items())
    while batch := dict(islice(items, BATCH)):
        for name, codes in machine_code(batch, spec).items():
            number = int(name[1:].partition("k")[0])
            found.setdefault(number, []).extend(map(astuple, codes))
        print(f"compiled {len(found)} of {len(groups)} groups", file=sys.stderr, flush=True)
    for number, group in enumerate(groups):
        claim = group.claim
        yield {
            "template": claim.template.name,
            "title": claim.group.title,
            "graphs": group.graphs,
            "claimed": [claim.registers, claim.shared_bytes],
            "kernels": found[number],
        }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kernel_resources")
    parser.description = __doc__
    parser.add_argument(
        "--models", nargs="*", default=MODELS, metavar="NAME", help="of the zoo (default: heavy)"
    )
    parser.add_argument(
        "--works",
        type=int,
        nargs="?",
        default=WORKS,
        help="how many works of benchmarks.gpu are drawn beside the named ones; without a number: "
        "no works, which are in PyTorch (default: %(default)s)",
    )
    parser.add_argument("--table", action="store_true", help="only write README.md")
    parser.add_argument("--target", default="cuda:sm_90a", help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="of weights and drawn works")
    parser.add_argument(
        "--json", type=Path, default=RESULT, help="file to write; the default one makes README.md"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
