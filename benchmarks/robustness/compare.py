"""Comparison of results with eager PyTorch in float64."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from benchmarks.largest_error import error

from .catalog import build

#: Largest error over the largest value of an output, by precision.
LIMITS = {"fp32": 1e-4, "fp16": 2e-2}
#: How much larger than that of eager PyTorch in float16 an error may be, where that is larger.
WITHIN = 2


@torch.no_grad()
def eager(name: str, dtype: torch.dtype) -> list[Tensor]:
    """Run a model in PyTorch with weights and inputs of a dtype."""
    module, inputs = build(name)
    # Before float64 is asked for, for the dtype in which a module makes its own constants.
    results = module.to(dtype)(*(x.to(dtype) if x.is_floating_point() else x for x in inputs))
    return [x.detach() for x in results]


def reference(name: str) -> tuple[list[Tensor], str]:
    """Run a model in float64, or in float32 where that fails; returns results and dtype.

    A mask of float64's lowest number is minus infinity to a softmax that a model computes in
    float32, and whole rows of it are NaN.
    """
    try:
        exact = eager(name, torch.float64)
    except Exception:  # guard: a model that makes float32 constants mixes dtypes; float32 stands
        return eager(name, torch.float32), "float32"
    if all(bool(x.isfinite().all()) for x in exact):
        return exact, "float64"
    single = eager(name, torch.float32)
    return (single, "float32") if _finite(single) > _finite(exact) else (exact, "float64")


def _finite(results: Sequence[Tensor]) -> int:
    return sum(int(x.isfinite().sum()) for x in results)


def limit(name: str, precision: str, expected: Sequence[Tensor]) -> float:
    """Return the error that a precision allows a model."""
    if precision == "fp32":
        return LIMITS[precision]
    try:
        half = [x.float().numpy() for x in eager(name, torch.float16)]
    except Exception:  # guard: PyTorch lacks some operators in float16 on CPUs; the limit stands
        return LIMITS[precision]
    measured = error(half, expected)
    return max(LIMITS[precision], WITHIN * measured) if np.isfinite(measured) else LIMITS[precision]
