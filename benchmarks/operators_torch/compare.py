"""Comparison with eager PyTorch: dtype, shape, and values within the dtype's tolerance."""

import operator
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import torch

from .samples import Sample

# Relative and absolute: those of torch.testing.assert_close, doubled for sums in another order.
_TOLERANCE = {
    torch.float64: (1e-6, 1e-7),
    torch.float32: (1e-4, 2e-5),
    torch.float16: (4e-3, 2e-3),
    torch.bfloat16: (3.2e-2, 1e-2),
}


def difference(sample: Sample, expected: Sequence[torch.Tensor], got: Sequence[Any]) -> str:
    """Say how results differ from eager PyTorch's; empty where they agree.

    A value also agrees where it is as near to PyTorch's own result in float64.
    """
    if len(got) != len(expected):
        return f"{len(got)} results instead of {len(expected)}"
    exact: Sequence[torch.Tensor] | None = None
    for place, (mine, theirs) in enumerate(zip(got, expected, strict=True)):
        theirs = _plain(theirs)
        ours = _tensor(mine)
        if ours.dtype != theirs.dtype:
            return f"result {place} is {ours.dtype} instead of {theirs.dtype}"
        if ours.shape != theirs.shape:
            return f"result {place} has shape {[*ours.shape]} instead of {[*theirs.shape]}"
        if not sample.is_defined or _close(ours, theirs, theirs.dtype):
            continue
        if place and _names_equals(sample.inputs, _tensor(got[0]), ours):
            continue
        if _orders_equally(sample.inputs, ours, theirs):
            continue
        exact = _in_float64(sample) if exact is None else exact
        # What is too large for the dtype is infinite in it.
        dtype = theirs.dtype
        if len(exact) == len(expected) and _close(ours, exact[place].to(dtype), dtype):
            continue
        return f"result {place} differs: {_worst(ours, theirs)}"
    return ""


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """Return a complex tensor as a compiled program returns it, with a last axis of two."""
    tensor = tensor.detach().resolve_conj().resolve_neg()
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _close(ours: torch.Tensor, theirs: torch.Tensor, dtype: torch.dtype) -> bool:
    rtol, atol = _TOLERANCE.get(dtype, (0.0, 0.0))
    if dtype in _TOLERANCE:
        return torch.allclose(ours.double(), theirs.double(), rtol, atol, equal_nan=True)
    return ours.dtype == theirs.dtype and torch.equal(ours, theirs)


def _names_equals(
    inputs: Sequence[torch.Tensor], values: torch.Tensor, places: torch.Tensor
) -> bool:
    """Say whether places are those of the values: of equal ones PyTorch may name another."""
    if places.dtype != torch.int64 or not inputs or places.shape != values.shape:
        return False
    x = inputs[0]
    for axis in range(x.ndim):
        keeps = places.ndim == x.ndim
        at, expected = (t if keeps else t.unsqueeze(axis) for t in (places, values))
        fits = at.ndim == x.ndim and all(map(operator.le, at.shape, x.shape))
        is_inside = fits and at.numel() and at.min() >= 0 and at.max() < x.shape[axis]
        if is_inside and torch.equal(x.gather(axis, at), expected):
            return True
    return False


def _orders_equally(
    inputs: Sequence[torch.Tensor], ours: torch.Tensor, theirs: torch.Tensor
) -> bool:
    """Say whether both are orders of the first input that differ among equal values only."""
    if ours.dtype != torch.int64 or not inputs or ours.shape != inputs[0].shape:
        return False
    return any(
        torch.equal(ours.sort(axis).values, theirs.sort(axis).values)
        and 0 <= int(theirs.min()) <= int(theirs.max()) < ours.shape[axis]
        and torch.equal(inputs[0].gather(axis, ours), inputs[0].gather(axis, theirs))
        for axis in range(ours.ndim if ours.numel() else 0)
    )


def _in_float64(sample: Sample) -> Sequence[torch.Tensor]:
    def wide(x: Any) -> Any:
        if isinstance(x, torch.Tensor) and x.is_complex():
            return x.to(torch.complex128)
        is_half = isinstance(x, torch.Tensor) and x.dtype in _TOLERANCE
        return x.double() if is_half else x

    try:
        return [_plain(x) for x in sample.program(*map(wide, sample.inputs))]
    except Exception:  # guard: the operator takes no float64 (mixed dtypes); eager's result stands
        return ()


def _worst(ours: torch.Tensor, theirs: torch.Tensor) -> str:
    if ours.numel() == 0:
        return "nothing"
    apart = (ours.double() - theirs.double()).abs()
    apart = torch.where(torch.isnan(apart), torch.inf, apart).flatten()
    apart[(ours.flatten() == theirs.flatten())] = 0
    at = int(apart.argmax())
    return f"{ours.flatten()[at].item()} instead of {theirs.flatten()[at].item()} at {at}"


def _tensor(array: Any) -> torch.Tensor:
    array = np.ascontiguousarray(array).reshape(np.shape(array))
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(array.copy())
