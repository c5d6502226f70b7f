"""Sample programs: PyTorch's operator database as modules with tensors for inputs."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

from .counts import NAMES

DTYPES = {name: getattr(torch, name) for name in NAMES}


class Program(torch.nn.Module):
    """One operator with everything that is no tensor bound."""

    def __init__(self, operator: Any, spec: Any, leaves: list[Any]):
        super().__init__()
        self._operator, self._spec = operator, spec
        self._constants = [None if isinstance(x, torch.Tensor) else x for x in leaves]
        self._places = [i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor)]

    def forward(self, *tensors: torch.Tensor) -> Any:
        """Apply the operator; returns its tensors in order."""
        leaves = list(self._constants)
        for place, tensor in zip(self._places, tensors, strict=True):
            leaves[place] = tensor
        args, kwargs = pytree.tree_unflatten(leaves, self._spec)
        result = self._operator(*args, **kwargs)
        return tuple(x for x in pytree.tree_leaves(result) if isinstance(x, torch.Tensor))


class Batch(torch.nn.Module):
    """Several programs as one, so that exporting and building are paid once."""

    def __init__(self, parts: Sequence[Sample]):
        super().__init__()
        self._programs = [part.program for part in parts]
        self._counts = [len(part.inputs) for part in parts]

    def forward(self, *tensors: torch.Tensor) -> Any:
        """Run each program on its own inputs; returns all their tensors in order."""
        results: list[Any] = []
        for program, count in zip(self._programs, self._counts, strict=True):
            results += program(*tensors[:count])
            tensors = tensors[count:]
        return tuple(results)


@dataclass(frozen=True)
class Sample:
    """One program and its inputs; not ``is_defined`` if it returns what memory held, as empty."""

    program: torch.nn.Module
    inputs: tuple[torch.Tensor, ...]
    is_defined: bool = True


def together(parts: Sequence[Sample]) -> Sample:
    """Make one sample of several."""
    inputs = tuple(x for part in parts for x in part.inputs)
    return Sample(Batch(parts).eval(), inputs, all(part.is_defined for part in parts))


def names() -> list[str]:
    """List the operators, variants included: ``add``, ``norm.nuc``."""
    return list(_by_name())


def cases() -> Iterator[tuple[str, str]]:
    """Yield (operator, dtype) for every dtype here that the operator takes on a CPU."""
    for name, op in _by_name().items():
        for dtype, torch_dtype in DTYPES.items():
            if torch_dtype in op.supported_dtypes("cpu"):
                yield name, dtype


def samples(name: str, dtype: str, most: int) -> list[Sample]:
    """Draw an operator's samples, spread evenly over those that PyTorch lists.

    Parameters
    ----------
    name
        One of :func:`names`.
    dtype
        A key of :data:`DTYPES`.
    most
        How many at most.
    """
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(0)
    op = _by_name()[name]
    drawn = list(op.sample_inputs("cpu", DTYPES[dtype], requires_grad=False))
    if len(drawn) > most:
        drawn = [drawn[i * len(drawn) // most] for i in range(most)]
    return [_sample(op, sample) for sample in drawn]


def _sample(op: Any, sample: Any) -> Sample:
    leaves, spec = pytree.tree_flatten(((sample.input, *sample.args), sample.kwargs))
    program = Program(op.op, spec, leaves)
    inputs = tuple(_plain(x) for x in leaves if isinstance(x, torch.Tensor))
    return Sample(program.eval(), inputs, "empty" not in op.name)


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach()
    return tensor.clone() if tensor.layout != torch.strided else tensor.contiguous().clone()


def _by_name() -> dict[str, Any]:
    return {
        f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name: op for op in op_db
    }
