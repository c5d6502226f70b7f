"""Results and latency of one model under each way of rewriting, all in one process."""

import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import tvm_fusion
from benchmarks import zoo
from benchmarks.turns import alternate

from .counting import WAYS

SEEDS = (0, 1, 2)  # of inputs that results are compared for
ROUNDS = 41  # a model takes longer than a turn
TOLERANCE = 1e-4  # on max|a-b| / max|b| of each output


def errors(
    executables: dict[str, Any], name: str, seeds: Sequence[int] = SEEDS
) -> dict[str, float]:
    """Compare results with those of the model that is not rewritten.

    Parameters
    ----------
    executables : dict of str to Executable
        By the way of rewriting, ``none`` among them.
    name
        Of the model in the zoo.
    seeds
        Inputs are drawn from each.

    Returns
    -------
    dict of str to float
        The largest max|a-b| / max|b| of any output; infinite where one is not finite.
    """
    worst = dict.fromkeys((way for way in executables if way != "none"), 0.0)
    for seed in seeds:
        inputs = zoo.inputs(name, seed)
        expected = executables["none"].run(inputs)
        for way in worst:
            found = executables[way].run(inputs)
            worst[way] = max(worst[way], *(_error(found[n], expected[n]) for n in expected))
    return worst


def measure(name: str) -> dict[str, Any]:
    """Build, compare and time a model of the zoo.

    Returns
    -------
    dict
        By the way of rewriting ``ms`` (median of rounds in which all have their turn) and
        ``error``.

    Raises
    ------
    RuntimeError
        If results differ: nothing wrong is timed.
    """
    model = zoo.load(name)
    with tempfile.TemporaryDirectory(prefix="rewriting-") as folder:
        executables: dict[str, Any] = {
            way: tvm_fusion.load(tvm_fusion.compile(model, rewrite=way).export(Path(folder) / way))
            for way in WAYS
        }
        found = errors(executables, name)
        for way, error in found.items():
            if not error <= TOLERANCE:
                raise RuntimeError(f"{name} rewritten by {way} differs by {error:.1e}")
        inputs = zoo.inputs(name)
        seconds = alternate([partial(e.run, inputs) for e in executables.values()], ROUNDS)
    return {
        way: {"ms": 1e3 * each, "error": found.get(way, 0.0)}
        for way, each in zip(executables, seconds, strict=True)
    }


def _error(found: Any, expected: Any) -> float:
    a, b = np.asarray(found, "float64"), np.asarray(expected, "float64")
    error = float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-30))
    return error if np.isfinite(error) else float("inf")
