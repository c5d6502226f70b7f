"""A pass of AITemplate's, the graphs that it is for, and what does its work here."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx

from benchmarks.fusion.case import Case, module
from benchmarks.fusion.case import tensor as tensor

CPU, GPU = "cpu:x86-64-v3", "cuda:sm_90a"
TARGETS = (CPU, GPU)
N = 33  # what a symbolic dimension is counted and run at

_RNG = np.random.default_rng(0)


@dataclass(frozen=True)
class Example:
    """A graph that a pass is for."""

    case: Case  # the graph with its reference
    kernels: int  # how many are left where the pass has done its work
    bytes: int  # most intermediate bytes that then remain
    functions: int | None = None  # how many different kernels these are; None: as many as there are
    # By target, why more kernels or bytes stay.
    missing: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Unique among all rows."""
        return self.case.name

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Row:
    """What AITemplate does in one pass or a few."""

    title: str  # what is done
    # The names of AITemplate's passes, or of operators that its passes write.
    passes: tuple[str, ...]
    mechanism: str  # what does it here
    examples: tuple[Example, ...]  # the smallest graphs that it is for

    def __repr__(self) -> str:
        return self.title


def example(
    name: str,
    params: Sequence[relax.Var] | Callable[[tirx.Var], Sequence[relax.Var]],
    body: Callable[..., Any],
    reference: Callable[..., Any],
    *,
    kernels: int = 1,
    bytes: int = 0,
    functions: int | None = None,
    tolerance: float = 1e-5,
    missing: Mapping[str, str] | str = "",
) -> Example:
    """Write an example.

    Parameters
    ----------
    name
        Unique among all rows.
    params
        The inputs; of a graph with a symbolic dimension, a function of it.
    body
        From ``emit`` and the inputs to an output or a list of outputs.
    reference
        The same over float64 arrays.
    kernels, bytes, functions, tolerance, missing
        See the classes; a reason alone is that of both targets.
    """

    def build() -> tvm.IRModule:
        made = params(tirx.Var("n", "int64")) if callable(params) else params
        return module(made, lambda b, *inputs: body(b.emit, *inputs))

    case = Case(name, build, reference, {"n": N} if callable(params) else {}, tolerance)
    reasons = dict.fromkeys(TARGETS, missing) if isinstance(missing, str) else dict(missing)
    return Example(case, kernels, bytes, functions, {t: r for t, r in reasons.items() if r})


def weight(*shape: int, dtype: str = "float32") -> np.ndarray:
    """Draw a matrix that is known at compile time."""
    return _RNG.standard_normal(shape).astype(dtype)


def sigmoid(x: np.ndarray) -> np.ndarray:
    """Return 1 / (1 + exp(-x))."""
    return 1 / (1 + np.exp(-x))


def relu(x: np.ndarray) -> np.ndarray:
    """Return max(x, 0)."""
    return np.maximum(x, 0)


def layer_norm(x: np.ndarray, gamma: np.ndarray, beta: np.ndarray) -> np.ndarray:
    """Normalise rows."""
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * gamma + beta
