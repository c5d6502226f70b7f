"""Tune a model with this package, in a process of its own.

Run as ``python -m benchmarks.tuning.ours MODEL RECORDS BUDGET``; prints JSON.
"""

import json
import sys
from typing import Any

from rich.console import Console

import tvm_fusion
from tvm_fusion.tuning.view import view


def tune(model: str, db: str, budget: str) -> dict[str, Any]:
    """Tune for a budget; says what was found, and what the race of the whole model has shown."""
    with view(Console(stderr=True)) as progress:
        found = tvm_fusion.tune(model, "cpu", db=db, budget=budget, progress=progress)
    race = found.model
    return {
        "tasks": found.tasks,
        "tuned": found.tuned,
        "trials": found.trials,
        "failed": found.failed,
        "gain_of_tasks": found.default_us / found.us if found.us else 1.0,
        "kept": race is None or race.gain > 1,
    }


if __name__ == "__main__":
    print(json.dumps(tune(*sys.argv[1:])))
