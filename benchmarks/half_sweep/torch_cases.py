"""PyTorch's operator samples in half types, and eager PyTorch's results in wider ones."""

import re
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import torch

from benchmarks.operators_torch.samples import Sample, cases, samples, together

from .case import Case, Run
from .magnitudes import HALVES

#: Operators whose results are random, are what memory held, or are no matter of a type's range.
SKIPPED = re.compile(
    r"bernoulli|cauchy|dropout|empty|exponential|geometric|log_normal|multinomial|normal|rand|"
    r"rrelu|uniform|to_sparse|sparse|__rpow__|nn\.functional\.scaled_dot_product_attention_random"
)


class NoProgram(Exception):
    """PyTorch cannot export a sample."""


def names() -> Iterator[str]:
    """Yield the operators that take float16 on a CPU."""
    yield from (name for name, dtype in cases() if dtype == "float16" and not SKIPPED.search(name))


def case(name: str, dtype: str) -> tuple[Case, Sample] | None:
    """Make a case of an operator's first sample with a tensor of a half type; None without one."""
    for sample in samples(name, "float16", 3):
        is_half = [x.dtype == torch.float16 for x in sample.inputs]
        if not any(is_half) or sum(x.numel() for x in sample.inputs) > 5000:
            continue
        narrow = getattr(torch, dtype)
        given = tuple(x.to(narrow) if h else x for x, h in zip(sample.inputs, is_half, strict=True))
        part = Sample(sample.program, given)
        exact = {wide: _eager(sample.program) for wide in ("float64", "float32")}
        inputs = [array(x.float()) if h else array(x) for x, h in zip(given, is_half, strict=True)]
        peer = _eager(sample.program)
        made = Case(name, dtype, inputs, is_half, partial(_alone, part), exact, peer)
        if _is_comparable(made):
            return made, part
    return None


def _is_comparable(case: Case) -> bool:
    """Whether the operator returns tensors, and the same ones in each type."""
    try:
        given = [
            x.astype(HALVES[case.dtype]) if h else x
            for x, h in zip(case.inputs, case.is_half, strict=True)
        ]
        narrow = case.peer(given) if case.peer is not None else []
        wide = case.wide(given, "float64")
    except Exception:  # guard: torch has no such operator in this type, whatever it raises
        return False
    return bool(narrow) and [np.shape(x) for x in narrow] == [np.shape(x) for x in wide]


def compiled(parts: Sequence[Sample]) -> list[Run]:
    """Compile several samples as one program; returns what runs each of them.

    A sample that runs alone leaves the inputs of the others as they were exported.
    """
    import tvm_fusion

    whole = together(parts)
    try:
        program = torch.export.export(whole.program, whole.inputs)
    except Exception as error:  # guard: torch's own failures are no finding of ours
        raise NoProgram(str(error)) from error
    names = list(program.graph_signature.user_inputs)
    counts = [len(part.program(*(x.clone() for x in part.inputs))) for part in parts]
    artifact = tvm_fusion.compile(program, "cpu")
    with tempfile.TemporaryDirectory() as folder:
        executable = tvm_fusion.load(artifact.export(Path(folder) / "a"))
    taken = {spec.name for spec in executable.signatures["main"].inputs}
    drawn = {n: array(x) for n, x in zip(names, whole.inputs, strict=True)}

    def runs(number: int) -> Run:
        first = sum(len(part.inputs) for part in parts[:number])
        start = sum(counts[:number])

        def run(inputs: Sequence[np.ndarray]) -> list[Any]:
            given = drawn | dict(zip(names[first:], inputs, strict=False))
            found = executable.run({n: x for n, x in given.items() if n in taken})
            return list(found.values())[start : start + counts[number]]

        return run

    return [runs(number) for number in range(len(parts))]


def _alone(part: Sample) -> Run:
    return compiled([part])[0]


def _eager(program: torch.nn.Module) -> Run:
    def run(inputs: Sequence[np.ndarray]) -> list[Any]:
        with torch.no_grad():
            return [array(x) for x in program(*map(_tensor, inputs))]

    return run


def array(tensor: torch.Tensor) -> np.ndarray:
    """Return a tensor's elements, as ml_dtypes has those of bfloat16."""
    tensor = tensor.detach().resolve_conj().resolve_neg()
    tensor = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    tensor = tensor.contiguous().clone()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def _tensor(value: np.ndarray) -> torch.Tensor:
    value = np.ascontiguousarray(value).reshape(np.shape(value)).copy()
    if value.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(value.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(value)
