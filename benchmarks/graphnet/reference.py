"""What a graph computes without rounding, and where roundings of its inputs alone move that."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

#: Relative deviation by which :func:`moved` changes weights and inputs: 8 units of float32's last
#: place, below what a few layers' roundings add up to. Coarser dtypes get a unit of their own.
NOISE = 1e-6
_ROUNDS = 5
_NARROW = (torch.float16, torch.bfloat16, torch.float32)
_CASTS = (Tensor.float, Tensor.half, Tensor.bfloat16)


class _Double(TorchFunctionMode):
    """Reads float64 where a graph names a narrower dtype, such as that of a mask it makes."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func in _CASTS:
            return args[0].double()
        args, kwargs = pytree.tree_map(_wide, (tuple(args), kwargs or {}))
        return func(*args, **kwargs)


def _wide(leaf: Any) -> Any:
    return torch.float64 if isinstance(leaf, torch.dtype) and leaf in _NARROW else leaf


def tensors(results: Any) -> list[Tensor]:
    """Return the tensors among what a module returns, in order."""
    return [x.detach() for x in pytree.tree_leaves(results) if isinstance(x, Tensor)]


def in_double(module: nn.Module, inputs: Sequence[Tensor]) -> list[Tensor]:
    """Compute in float64, whatever dtypes the graph names.

    Parameters
    ----------
    module : torch.nn.Module
        Stays as it is.
    inputs
        Those of floating point are widened.
    """
    wide = copy.deepcopy(module).double()
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)  # of tensors made of numbers
    try:
        with _Double():
            return tensors(wide(*(x.double() if x.is_floating_point() else x for x in inputs)))
    finally:
        torch.set_default_dtype(default)


def beyond(got: Any, expected: Tensor, bound: float) -> float:
    """Return the share of elements that are further off than ``bound`` times the largest."""
    right = expected.double()
    ours = torch.as_tensor(got).double()
    if ours.shape != right.shape:
        return 1.0
    finite = right.isfinite()
    scale = right[finite].abs().max() if finite.any() else torch.tensor(0.0)
    near = (ours - right).abs() <= bound * (scale if scale else 1)
    return float((~torch.where(finite, near, ours.isfinite() == finite)).double().mean())


def moved(
    module: nn.Module, inputs: Sequence[Tensor], expected: Sequence[Tensor], bounds: Sequence[float]
) -> list[float]:
    """Return the shares of outputs that go beyond bounds where weights and inputs are noisy.

    Above nought only for what jumps, such as the order of nearly equal scores.

    Parameters
    ----------
    module : torch.nn.Module
        Stays as it is.
    inputs
        Of ``module``.
    expected
        Results of :func:`in_double`.
    bounds
        One for each result, as :func:`beyond` takes it.
    """
    generator = torch.Generator().manual_seed(0)
    worst = [0.0] * len(expected)
    for _ in range(_ROUNDS):
        noisy = copy.deepcopy(module).double()
        state = zip((*module.parameters(), *module.buffers()),
                    (*noisy.parameters(), *noisy.buffers()), strict=True)  # fmt: skip
        with torch.no_grad():
            for narrow, wide in state:
                wide.copy_(_noisy(narrow, generator))
        results = in_double(noisy, [_noisy(x, generator) for x in inputs])
        shares = map(beyond, results, expected, bounds)
        worst = [max(pair) for pair in zip(worst, shares, strict=True)]
    return worst


def _noisy(tensor: Tensor, generator: torch.Generator) -> Tensor:
    if not tensor.is_floating_point():
        return tensor
    deviation = max(NOISE, torch.finfo(tensor.dtype).eps) if tensor.dtype in _NARROW else 0
    drawn = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
    return tensor.double() * (1 + deviation * drawn)
