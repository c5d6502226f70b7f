"""A case: one operator in one half type, how to compile it, and what it should give."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import bounds
from .magnitudes import scaled

Run = Callable[[Sequence[np.ndarray]], Sequence[Any]]


@dataclass(frozen=True)
class Case:
    """An operator with inputs."""

    # Of the case, and of its floating point inputs.
    name: str
    dtype: str
    inputs: list[np.ndarray]  # values as drawn
    is_half: list[bool]  # which of them are of the half type
    compile: Callable[[], Run]  # compiles it and returns what runs it on inputs
    exact: dict[str, Run]  # the same in ``float64`` and ``float32``
    peer: Run | None = None  # the framework's own result in the half type

    def wide(self, inputs: Sequence[np.ndarray], dtype: str) -> Sequence[Any]:
        """Compute in a wide type; inputs of the half type are widened."""
        given = [x.astype(dtype) if h else x for x, h in zip(inputs, self.is_half, strict=True)]
        with np.errstate(all="ignore"):
            return [np.asarray(y) for y in self.exact[dtype](given)]


def judge(case: Case, run: Run) -> dict[str, Any]:
    """Run a compiled case at all magnitudes.

    Returns
    -------
    dict
        ``outcome``, ``right``, ``wrong`` or ``as peer``, where the framework's own result is wrong
        as well wherever this one is, and not clearly nearer; ``wrong``, a sentence for each
        magnitude at which it is; ``noted``, where float32 itself overflows; ``peer``, the
        magnitudes of the wrong ones at which the framework's own result is no better.
    """
    wrong: dict[str, str] = {}
    noted, peers = [], []
    for label, inputs in scaled(case.inputs, case.dtype, case.is_half):
        try:
            exact, single = case.wide(inputs, "float64"), case.wide(inputs, "float32")
        except Exception:  # guard: the operator takes no such values, whatever its framework raises
            continue
        found = run(inputs)
        if len(found) == len(exact):  # of equal elements each framework names another
            exact = [bounds.among_equals(*r, inputs[0]) for r in zip(found, exact, strict=True)]
        text, note = bounds.difference(found, exact, single)
        if text:
            wrong[label] = text
            if case.peer is not None and _is_no_worse(found, case.peer(inputs), exact, single):
                peers.append(label)
        if note:
            noted.append(label)
    outcome = "wrong" if wrong else "right"
    if wrong and len(peers) == len(wrong):
        outcome = "as peer"
    return {"outcome": outcome, "wrong": wrong, "noted": noted, "peer": peers}


def _is_no_worse(
    found: Sequence[Any], peer: Sequence[Any], exact: Sequence[Any], single: Sequence[Any]
) -> bool:
    """Tell whether the framework's own results are wrong, too, and not clearly less."""
    is_wrong = bool(bounds.difference(peer, exact, single)[0])
    return is_wrong and len(found) == len(peer) and not bounds.is_worse(found, peer, exact)
