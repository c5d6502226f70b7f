"""Coefficients of kinds of kernels: non-negative least squares of relative errors.

    us  =  sum over claims, over features, of coefficient of the claim's kind * feature

A row is one group, or several that run one after the other: an alternative of the planner. The
relative error of each row counts the same, however long it takes; a few rounds of weights make
that the absolute error, so that a row that is an exception does not bend the others. A kind of few
claims stays near the coefficients of all: each feature counts as a part of a row that has them
(ridge regression).
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tvm_fusion.fusion.features import NAMES
from tvm_fusion.fusion.fitted import kind_of

ROUNDS = 10  # of weights
FOLDS = 5  # parts, each of which is predicted by the others
LEAST = 3  # claims of a kind; those of fewer share the coefficients of all
PRIOR = 0.3  # rows that the coefficients of all count as
# Instructions of one kind cost at most so many times those of all: a few small groups, which wait
# for other reasons, would make large ones too dear.
MOST = 10.0
INSTRUCTIONS = ("element_loads", "thread_loads", "element_stores", "operand_operations")

Row = Mapping[str, Any]
Least = Callable[[str], Mapping[str, float]]


def claims_of(row: Row) -> Sequence[Row]:
    """List the claims of a row, with their templates and features: most rows are one themselves."""
    found: Sequence[Row] = row.get("claims", (row,))
    return found


def fit(rows: Sequence[Row], least: Least | None = None) -> dict[str, list[float]]:
    """Fit the coefficients of each kind, and of all together under the name ``""``.

    Parameters
    ----------
    least
        Gives, by the name of a kind, what each feature costs at least: at the device's peak rates.
        Larger groups than those of a fit are not priced below what the device can do.
    """
    counts = Counter(_kind(claim) for row in rows for claim in claims_of(row))
    kinds = ["", *sorted(kind for kind, count in counts.items() if count >= LEAST)]
    design = np.array([_design(row, kinds) for row in rows])
    times = np.array([row["us"] for row in rows])
    lowest = np.array([_features(least(kind)) if least else [0.0] * len(NAMES) for kind in kinds])
    every = _fit(design.sum(1), times, np.zeros(len(NAMES)))
    near = np.maximum(np.tile(every, (len(kinds), 1)), lowest)
    found = _fit(design.reshape(len(rows), -1), times, lowest.ravel(), near.ravel())
    most = [
        MOST * x if x and n in INSTRUCTIONS else np.inf for n, x in zip(NAMES, every, strict=True)
    ]
    kept = np.minimum(found.reshape(len(kinds), -1), most)
    table = {kind: _rounded(own) for kind, own in zip(kinds, kept, strict=True)}
    return table | {"": _rounded(near[0])}


def predicted(row: Row, coefficients: Mapping[str, Sequence[float]]) -> float:
    """Tell what the fitted model says of a row."""
    return sum(
        float(np.dot(coefficients.get(_kind(claim), coefficients[""]), _features(claim)))
        for claim in claims_of(row)
    )


def left_out(rows: Sequence[Row], least: Least | None = None) -> list[float]:
    """Predict each row by coefficients that were fitted without it, and others of its fold."""
    order = np.random.default_rng(0).permutation(len(rows))
    found = [0.0] * len(rows)
    for fold in range(FOLDS):
        held = set(order[fold::FOLDS].tolist())
        coefficients = fit([row for i, row in enumerate(rows) if i not in held], least)
        for i in held:
            found[i] = predicted(rows[i], coefficients)
    return found


def rank_correlation(a: Sequence[float], b: Sequence[float]) -> float:
    """Spearman's."""
    ranks = [np.argsort(np.argsort(values)) for values in (a, b)]
    return float(np.corrcoef(*ranks)[0, 1])


def _kind(claim: Row) -> str:
    return kind_of(claim["template"], claim.get("kiloclocks", 0.0))


def _features(claim: Mapping[str, Any]) -> list[float]:
    return [claim.get(name, 0.0) for name in NAMES]


def _design(row: Row, kinds: Sequence[str]) -> np.ndarray:
    """Add up the features of a row's claims of each kind; those of rare kinds at the first one."""
    found = np.zeros((len(kinds), len(NAMES)))
    for claim in claims_of(row):
        kind = _kind(claim)
        found[kinds.index(kind) if kind in kinds else 0] += _features(claim)
    return found


def _fit(
    design: np.ndarray, times: np.ndarray, lowest: np.ndarray, near: np.ndarray | None = None
) -> np.ndarray:
    relative = design / times[:, None]
    weights = np.ones(len(times))
    found = lowest.copy()
    having = np.maximum(1, np.count_nonzero(relative, axis=0))
    sizes = np.sqrt(PRIOR * (relative**2).sum(0) / having)
    held = np.zeros((0, len(found))) if near is None else np.diag(sizes)
    for _ in range(ROUNDS):
        matrix = np.concatenate([relative * weights[:, None], held])
        wanted = np.concatenate([weights, held @ (found if near is None else near)])
        found = lowest + _non_negative(matrix, wanted - matrix @ lowest)
        error = np.abs(relative @ found - 1)
        weights = 1 / np.sqrt(np.maximum(error, 0.05))
    # What no claim of a kind has costs what it costs of all.
    return found if near is None else np.where(relative.any(0), found, near)


def _non_negative(matrix: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Solve least squares with unknowns of at least zero (Lawson and Hanson, 1974)."""
    scale = np.sqrt((matrix**2).sum(0))
    used = np.flatnonzero(scale > 0)
    scaled = matrix[:, used] / scale[used]
    gram, right = scaled.T @ scaled + 1e-12 * np.eye(len(used)), scaled.T @ wanted
    found, free = np.zeros(len(used)), np.zeros(len(used), bool)
    for _ in range(3 * len(used)):
        slope = right - gram @ found
        slope[free] = 0.0
        if not len(used) or slope.max() <= 1e-10 * max(1.0, np.abs(right).max()):
            break
        free[slope.argmax()] = True
        while True:
            solved = np.zeros(len(used))
            solved[free] = np.linalg.solve(gram[np.ix_(free, free)], right[free])
            below = free & (solved <= 0)
            if not below.any():
                break
            step = (found[below] / (found[below] - solved[below])).min()
            found = found + step * (solved - found)
            free &= found > 1e-14
            found[~free] = 0.0
        found = solved
    result = np.zeros(matrix.shape[1])
    result[used] = found / scale[used]
    return result


def _rounded(row: np.ndarray) -> list[float]:
    return [float(f"{x:.4g}") for x in row]
