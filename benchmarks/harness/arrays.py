"""Named arrays: between processes through a file, and how far two sets of them are apart."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np


def save(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays under any names; members of the archive are numbered, the names kept aside."""
    members: dict[str, Any] = {f"a{i}": array for i, array in enumerate(arrays.values())}
    np.savez(path, names=np.array(list(arrays), dtype=str), **members)


def load(path: Path) -> dict[str, np.ndarray]:
    """Read what :func:`save` wrote, in its order."""
    with np.load(path) as stored:
        return {str(name): stored[f"a{i}"] for i, name in enumerate(stored["names"])}


def relative_error(
    found: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]
) -> tuple[float, str]:
    """Return the largest max|a-b| / max|b| over the outputs; a sentence where they don't compare.

    Outputs are matched in order, since engines rename them. Where they don't compare (another
    number of outputs, another shape, a value that is not finite) the error is infinite.
    """
    if len(found) != len(expected):
        return np.inf, f"{len(found)} outputs; expected {len(expected)}"
    worst = 0.0
    for (name, a), b in zip(found.items(), expected.values(), strict=True):
        if a.shape != b.shape:
            return np.inf, f"output {name!r} has shape {a.shape}; expected {b.shape}"
        a64, b64 = a.astype(np.float64), b.astype(np.float64)
        if not (np.isfinite(a64).all() and np.isfinite(b64).all()):
            return np.inf, f"output {name!r} or its reference is not finite"
        scale = float(np.max(np.abs(b64), initial=0.0)) or 1.0
        worst = max(worst, float(np.max(np.abs(a64 - b64), initial=0.0)) / scale)
    return worst, ""
