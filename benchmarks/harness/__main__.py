"""The command line: measure models of the zoo against peers, keep everything in one JSON file."""

import argparse
import os
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import zoo
from benchmarks.records import write
from benchmarks.zoo.batch import batched
from tvm_fusion.errors import UserError

from . import environment, measure, session
from .client import ROOT
from .engines import ENGINES
from .table import SCHEMA


def main(arguments: list[str] | None = None) -> int:
    """Measure; returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        peers = session.choose(options.peers.split(","))
        inputs = {name: _inputs(name, options.seed, options.batch) for name in options.models}
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    settings = measure.Settings(rounds=options.rounds, budget=options.budget)
    record: dict[str, Any] = {
        "schema": SCHEMA,
        "environment": environment.describe(ROOT),
        "command": ["python", "-m", "benchmarks.harness", *(arguments or sys.argv[1:])],
        "settings": {"threads": options.threads, "seed": options.seed, **asdict(settings)},
        "models": [],
    }
    for name in options.models:
        # Workers hold weights several times over; on a small /tmp, TMPDIR says where they go.
        with tempfile.TemporaryDirectory(prefix="harness-") as folder:
            model = zoo.load(name, seed=options.seed)
            result = session.measure_model(
                name if options.batch == 1 else f"{name}, batch {options.batch}",
                model if options.batch == 1 else batched(model, options.batch),
                inputs[name],
                peers,
                settings=settings,
                threads=options.threads,
                seed=options.seed,
                timeout=options.timeout,
                folder=Path(folder),
                progress=lambda line: print(line, file=sys.stderr, flush=True),
            )
        record["models"].append(result)
        write(options.json, record)
    return 0


def _inputs(name: str, seed: int, batch: int) -> dict[str, np.ndarray]:
    if name not in zoo.names():
        raise UserError(f"unknown model {name}", f"one of {', '.join(zoo.names())}")
    if batch < 1:
        raise UserError(f"batch {batch}", "at least one image", "choose another")
    try:
        images = [zoo.inputs(name, seed=seed + i) for i in range(batch)]
        return {
            key: first if first.ndim < 2 else np.concatenate([image[key] for image in images])
            for key, first in images[0].items()
        }
    except ValueError as error:
        # The zoo's sentence tells which dimension is open.
        raise UserError(str(error), "a static model", "choose another") from None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.harness", description=__doc__)
    parser.add_argument("--models", nargs="+", required=True, metavar="NAME", help="zoo models")
    parser.add_argument(
        "--peers", default=",".join(ENGINES), help="comma-separated; default: %(default)s"
    )
    parser.add_argument("--rounds", type=int, default=7, help="default: %(default)s")
    parser.add_argument(
        "--threads", type=int, default=len(os.sched_getaffinity(0)), help="default: all CPUs"
    )
    parser.add_argument(
        "--budget", type=float, default=1.0, help="seconds per engine and round (default: 1)"
    )
    parser.add_argument(
        "--timeout", type=float, default=1800, help="seconds a step may take (default: 1800)"
    )
    parser.add_argument(
        "--batch", type=int, default=1, help="images at once, convolutional networks (default: 1)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of weights and inputs")
    parser.add_argument("--json", type=Path, required=True, help="file to write")
    return parser


if __name__ == "__main__":
    sys.exit(main())
