"""Coefficients of templates: non-negative least squares of relative errors.

    us  =  sum over features of coefficient * feature,  of each template

The relative error of each group counts the same, however long it takes; a few rounds of weights
make that the absolute error, so that a group that is an exception does not bend the others. A
template of few groups stays near the coefficients of all: each feature counts as a part of a group
that has them (ridge regression).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tvm_fusion.fusion.features import NAMES

ROUNDS = 20  # of weights
SWEEPS = 3000  # of coordinate descent: six unknowns
LEAST = 3  # groups of a template; those with fewer share the coefficients of all
PRIOR = 0.3  # groups that the coefficients of all count as


def fit(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Fit the coefficients of each template, and of all together under the name ``""``."""
    names = sorted({row["template"] for row in rows})
    groups = {name: [row for row in rows if row["template"] == name] for name in names}
    kept = {name: group for name, group in groups.items() if len(group) >= LEAST}
    every = _fit(rows)
    return {"": every, **{name: _fit(group, every) for name, group in kept.items()}}


def predicted(row: Mapping[str, Any], coefficients: Mapping[str, Sequence[float]]) -> float:
    """Tell what the fitted model says of a group."""
    own = coefficients.get(row["template"], coefficients[""])
    return float(np.dot(own, [row.get(name, 0.0) for name in NAMES]))


def left_out(rows: Sequence[Mapping[str, Any]], folds: int = 5) -> list[float]:
    """Predict each group by coefficients that were fitted without it, and others of its fold."""
    order = np.random.default_rng(0).permutation(len(rows))
    found = [0.0] * len(rows)
    for fold in range(folds):
        held = set(order[fold::folds].tolist())
        coefficients = fit([row for i, row in enumerate(rows) if i not in held])
        for i in held:
            found[i] = predicted(rows[i], coefficients)
    return found


def rank_correlation(a: Sequence[float], b: Sequence[float]) -> float:
    """Spearman's."""
    ranks = [np.argsort(np.argsort(values)) for values in (a, b)]
    return float(np.corrcoef(*ranks)[0, 1])


def _fit(rows: Sequence[Mapping[str, Any]], every: Sequence[float] | None = None) -> list[float]:
    times = np.array([row["us"] for row in rows])
    relative = np.array([[row.get(name, 0.0) for name in NAMES] for row in rows]) / times[:, None]
    weights = np.ones(len(rows))
    found = np.zeros(len(NAMES))
    sizes = np.sqrt(PRIOR * (relative**2).mean(0))
    held = np.zeros((0, len(NAMES))) if every is None else np.diag(sizes)
    for _ in range(ROUNDS):
        matrix = np.concatenate([relative * weights[:, None], held])
        found = _non_negative(matrix, np.concatenate([weights, held @ (every or found)]))
        error = np.abs(relative @ found - 1)
        weights = 1 / np.sqrt(np.maximum(error, 0.05))
    return [float(f"{x:.4g}") for x in found]


def _non_negative(matrix: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Solve least squares with unknowns of at least zero, by coordinate descent."""
    gram, right = matrix.T @ matrix, matrix.T @ wanted
    found = np.zeros(matrix.shape[1])
    for _ in range(SWEEPS):
        before = found.copy()
        for j in np.flatnonzero(np.diag(gram) > 0):
            step = (right[j] - gram[j] @ found) / gram[j, j]
            found[j] = max(0.0, found[j] + step)
        if np.abs(found - before).max() <= 1e-9 * np.abs(found).max():
            break
    return found
