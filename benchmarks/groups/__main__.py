"""The command line: measure every distinct group of the zoo models' plans on this CPU."""

import argparse
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import zoo
from benchmarks.harness import environment
from benchmarks.records import columns, write
from tvm_fusion.device import parse
from tvm_fusion.errors import UserError

from .table import render, summary

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RESULT, README = HERE / "results" / "groups.json.xz", HERE / "README.md"
MODELS = tuple(n for n in zoo.names() if not n.startswith("light_") and not n.endswith("_dyn"))
SCHEMA = 1


def main(arguments: list[str] | None = None) -> int:
    """Measure; returns the exit code: 1 where a group is wrong, failed, or slower than allowed."""
    options = _parser().parse_args(arguments)
    os.environ["TVM_NUM_THREADS"] = str(options.threads)  # before TVM starts its threads
    try:
        record = _run(options, arguments or sys.argv[1:])
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(summary(record))
    if options.json == RESULT:
        README.write_text(render(record))
    return 1 if record["losses"] or record["broken"] else 0


def _run(options: argparse.Namespace, arguments: list[str]) -> dict[str, Any]:
    from . import measure
    from .survey import Survey

    unknown = [name for name in options.models if name not in zoo.names()]
    if unknown:
        raise UserError(f"unknown model {unknown[0]}", f"one of {', '.join(zoo.names())}")
    settings = measure.Settings(options.rounds, options.budget, stock=options.stock)
    record: dict[str, Any] = {
        "schema": SCHEMA,
        "environment": environment.describe(ROOT),
        "command": ["python", "-m", "benchmarks.groups", *arguments],
        "settings": {"threads": options.threads, "seed": options.seed, **asdict(settings)},
    }
    survey = Survey(parse("cpu").tvm_target(), settings, options.seed)
    for name in options.models:
        survey.model(name, progress=lambda line: print(line, file=sys.stderr, flush=True))
        record |= survey.result()
        write(options.json, {**record, "groups": columns(record["groups"])})
    return record


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.groups", description=__doc__)
    parser.add_argument(
        "--models", nargs="+", default=MODELS, metavar="NAME", help="of the zoo (default: heavy)"
    )
    parser.add_argument(
        "--json", type=Path, default=RESULT, help="file to write; the default one makes README.md"
    )
    parser.add_argument("--rounds", type=int, default=7, help="default: %(default)s")
    parser.add_argument(
        "--budget", type=float, default=0.02, help="seconds per variant and round (default: 0.02)"
    )
    parser.add_argument(
        "--threads", type=int, default=len(os.sched_getaffinity(0)), help="default: all CPUs"
    )
    parser.add_argument("--seed", type=int, default=0, help="of weights and inputs")
    parser.add_argument(
        "--stock", action="store_true", help="run the members as stock TVM leaves them, too (slow)"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
