"""Extents that depend on values: read when the model runs, for each call anew."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch_functions import Function  # noqa: E402

import tvm_fusion  # noqa: E402

pytestmark = pytest.mark.torch


def filled(x, i):
    count = i.max().item()
    torch._check(count >= 0)
    return torch.full((count, 4), 2.0) + x[:1]


FUNCTIONS = {
    "nonzero": lambda x, i: torch.nonzero(x > 0),
    "selected": lambda x, i: x[x > 0] * 2,
    "rows": lambda x, i: x[i > 1].sum(1) + 1,
    "unique": lambda x, i: torch.unique(i, return_inverse=True, return_counts=True),
    "runs": lambda x, i: torch.unique_consecutive(i, return_inverse=True, return_counts=True),
    "bincount": lambda x, i: torch.bincount(i, minlength=2),
    "repeated": lambda x, i: torch.repeat_interleave(x, i, 0),
    "extent": filled,
    "number": lambda x, i: x * x.sum().item(),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_extents_that_depend_on_values(tmp_path, name):
    module = Function(FUNCTIONS[name])
    program = torch.export.export(module, (torch.randn(5, 4), torch.tensor([3, 1, 1, 0, 4])))
    tvm_fusion.compile(program, "cpu").export(tmp_path / "a")
    executable = tvm_fusion.load(tmp_path / "a")
    names = [spec.name for spec in executable.signatures["main"].inputs]
    for numbers in ([3, 1, 1, 0, 4], [2, 2, 2, 0, 0], [1, 1, 1, 1, 1]):
        arguments = torch.randn(5, 4), torch.tensor(numbers)
        expected = module(*arguments)
        expected = expected if isinstance(expected, tuple) else (expected,)
        given = dict(zip(program.graph_signature.user_inputs, arguments, strict=True))
        results = executable.run({n: given[n].numpy() for n in names}).values()
        for result, wanted in zip(results, expected, strict=True):
            np.testing.assert_allclose(result, wanted.numpy(), 1e-5, 1e-6)
