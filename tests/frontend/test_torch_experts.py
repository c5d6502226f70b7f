"""Groups of rows, each multiplied by a matrix of its own, and counts by bins."""

from __future__ import annotations

import numpy as np
import pytest

from tvm_fusion.frontend import import_model

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


@pytest.mark.parametrize("ends", [[2, 2, 5], [0, 7, 7], [1, 3, 6]])
@pytest.mark.parametrize("groups", [3, 9])
def test_grouped_products(run, ends, groups):
    """Both forms: one product of wide rows, and a matrix taken for each row; empty groups."""
    ends = [*ends, *[ends[-1]] * (groups - 3)]

    class Grouped(torch.nn.Module):
        def forward(self, x, weight, offs):
            weight = weight.bfloat16().transpose(1, 2)  # all that torch exports it for
            return torch.nn.functional.grouped_mm(x.bfloat16(), weight, offs=offs).float()

    def draw(*shape):
        return torch.randint(-3, 4, shape).float()  # exact in bfloat16, sums as well

    x, weight = draw(ends[-1], 8), draw(groups, 16, 8)
    offs = torch.tensor(ends, dtype=torch.int32)
    program = torch.export.export(Grouped(), (x, weight, offs))
    assert any("grouped_mm" in str(node.target) for node in program.graph.nodes)
    mod = import_model(program).mod
    x, weight = draw(*x.shape), draw(*weight.shape)
    result = run(mod, x.numpy(), weight.numpy(), offs.numpy())
    of_row = np.searchsorted(ends, np.arange(ends[-1]), side="right")
    right = np.einsum("sk,snk->sn", x.numpy(), weight.numpy()[of_row])
    np.testing.assert_array_equal(result, right)


@pytest.mark.parametrize(("low", "high", "bins"), [(0, 7, 8), (-1.5, 2.5, 5)])
def test_histogram(run, low, high, bins):
    class Counts(torch.nn.Module):
        def forward(self, x):
            return torch.histc(x, bins=bins, min=low, max=high)

    x = torch.cat([torch.randint(-2, 9, (23,)).float(), 3 * torch.randn(31), torch.tensor([high])])
    program = torch.export.export(Counts(), (x,))
    result = run(import_model(program).mod, x.numpy())
    np.testing.assert_array_equal(result, Counts()(x).numpy())


@pytest.mark.parametrize("bounds", [(13, -13, -1), (5, -4, -3), (2, 2, -1)])
def test_counting_downwards(run, bounds):
    class Down(torch.nn.Module):
        def forward(self, x):
            return torch.arange(*bounds), x

    program = torch.export.export(Down(), (torch.randn(3),))
    result, _ = run(import_model(program).mod, np.zeros(3, "float32"))
    np.testing.assert_array_equal(result, np.arange(*bounds))
