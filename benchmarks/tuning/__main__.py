"""Tune models for some minutes, and for some trials; then measure all side by side.

Writes ``results/MODEL.json``, or ``MODEL.MACHINE.json``, and ``README.md``. What was tuned stays in
the folder: the same command measures again, and more minutes are added to those that were spent.
"""

import argparse
import os
import shutil
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import zoo
from benchmarks.harness import environment, session
from benchmarks.harness.client import ROOT
from benchmarks.harness.engines import ENGINES, OURS
from benchmarks.harness.measure import Settings
from benchmarks.records import write

from . import labels
from .bounds_page import bounds
from .page import HERE, MODELS, load, render
from .steps import DATABASE, RECORDS, Plan

ENGINE = "benchmarks.tuning.engines:"


def main(arguments: list[str] | None = None) -> int:
    """Tune, measure and render; returns the exit code."""
    options = _parser().parse_args(arguments)
    for name in () if options.table else options.models:
        minutes = [float(text) for text in options.minutes.split(",") if text]
        plan = Plan(name, options.folder / name, minutes, options.trials, options.threads)
        said = plan.run()
        file = f"{name}.{options.machine}.json.xz" if options.machine else f"{name}.json.xz"
        write(HERE / "results" / file, _measure(plan, said, options.rounds))
    (HERE / "README.md").write_text(render(load(HERE / "results"), bounds()))
    return 0


def _measure(plan: Plan, said: dict[str, dict[str, Any]], rounds: int) -> dict[str, Any]:
    """Measure the default and every step of a model in turns, after their outputs are checked."""
    settings = Settings(rounds=rounds)
    peers = {OURS: ENGINES[OURS]}
    load_before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="tuning-") as folder:
        for label, facts in said.items():
            if "error" in facts:
                continue
            is_ours = labels.trials_of(label) is None
            peers[label] = ENGINE + ("tuned" if is_ours else "metaschedule")
            Path(folder, label).mkdir()
            for file in (RECORDS,) if is_ours else DATABASE:
                shutil.copy(plan.folder / label / file, Path(folder, label))
        result = session.measure_model(
            plan.name,
            zoo.load(plan.name),
            zoo.inputs(plan.name),
            peers,
            settings=settings,
            threads=plan.threads,
            seed=0,
            timeout=1800,
            folder=Path(folder),
            progress=lambda line: print(line, file=sys.stderr, flush=True),
        )
    return {
        "environment": environment.describe(ROOT),
        "settings": {"threads": plan.threads, **asdict(settings)},
        "load": round(max(load_before, os.getloadavg()[0]), 1),
        "steps": said,
        "peers": result["peers"],
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tuning", description=__doc__)
    parser.add_argument(
        "--models", nargs="+", default=MODELS, choices=zoo.names(), metavar="NAME",
        help=f"of the zoo (default: {' '.join(MODELS)})",
    )  # fmt: skip
    parser.add_argument("--minutes", default="5", help="such as 1,5,15 (default: %(default)s)")
    parser.add_argument(
        "--trials", type=int, default=128, help="of ours and of MetaSchedule (default: %(default)s)"
    )
    parser.add_argument(
        "--threads", type=int, default=len(os.sched_getaffinity(0)), help="default: all CPUs"
    )
    parser.add_argument("--rounds", type=int, default=7, help="default: %(default)s")
    parser.add_argument(
        "--folder", type=Path, default=Path(tempfile.gettempdir(), "tvm-fusion-tuning"),
        help="where what was tuned stays (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--machine", default="", metavar="NAME",
        help="part of the names of files, for results of several machines next to each other",
    )  # fmt: skip
    parser.add_argument("--table", action="store_true", help="only write README.md")
    return parser


if __name__ == "__main__":
    sys.exit(main())
