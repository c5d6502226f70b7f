"""Extents that depend on values: read when the model runs, for each call anew."""

import contextlib

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import tvm_fusion  # noqa: E402
from benchmarks.runtime_alone import RuntimeAlone  # noqa: E402
from tests.frontend.torch_functions import Function  # noqa: E402
from tvm_fusion import UserError  # noqa: E402
from tvm_fusion.core.decisions import recording  # noqa: E402

pad = torch.nn.functional.pad

pytestmark = pytest.mark.torch


def filled(x, i):
    count = i.max().item()
    torch._check(count >= 0)
    return torch.full((count, 4), 2.0) + x[:1]


def with_loops(x, i):
    """Sum over the edges that a mask selects and a loop at each node."""
    nodes = torch.cat([i[i > 1], torch.arange(5)])
    weights = torch.ones((nodes.shape[0],))
    degrees = weights.new_zeros((5,)).scatter_add_(0, nodes, weights)
    edges = (degrees.rsqrt()[nodes] * weights).view(-1, 1) * x.index_select(0, nodes)
    rows = nodes.view(-1, 1).expand_as(edges)
    return torch.zeros(5, 4).scatter_add_(0, rows, edges)


def sliced(x, i):
    count = i[0].item()
    torch._check(count >= 0)
    torch._check(count <= 4)
    return x[:count] * 2, x[count:], x[1 : count + 1].sum(0)


FUNCTIONS = {
    "slices": sliced,
    "places": lambda x, i: (x[i[4]], x[1:][:, i[0] - 4]),
    "nonzero": lambda x, i: torch.nonzero(x > 0),
    "nonzero of none": lambda x, i: (torch.nonzero(x[:0]), x + 1),
    "selected": lambda x, i: x[x > 0] * 2,
    "rows": lambda x, i: x[i > 1].sum(1) + 1,
    "unique": lambda x, i: torch.unique(i, return_inverse=True, return_counts=True),
    "runs": lambda x, i: torch.unique_consecutive(i, return_inverse=True, return_counts=True),
    "unique rows": lambda x, i: torch.unique(
        torch.stack([i, i // 2]), dim=1, return_inverse=True, return_counts=True
    ),
    "runs of rows": lambda x, i: torch.unique_consecutive(torch.stack([i, i], 1) // 2, dim=0),
    "bincount": lambda x, i: torch.bincount(i, minlength=2),
    "repeated": lambda x, i: torch.repeat_interleave(x, i, 0),
    "extent": filled,
    "loops": with_loops,
    "number": lambda x, i: x * x.sum().item(),
}
PADDED = {
    "up to": lambda x: pad(x, (0, 0, 0, 48 - x.shape[0])),
    "up to, before": lambda x: pad(x, (0, 0, 48 - x.shape[0], 0)),
    "to a multiple": lambda x: pad(x, (0, 0, 0, -x.shape[0] % 4)) * 100,
    "half before": lambda x: pad(x, (0, 1, x.shape[0] // 2, 0), value=2.0),
    "cut or padded": lambda x: pad(x > 0, (0, 0, 0, 20 - x.shape[0]), value=True),
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


@pytest.mark.parametrize("name", PADDED)
def test_padding_by_widths_that_depend_on_extents(tmp_path, name):
    module, rows = Function(PADDED[name]), torch.export.Dim("N", min=4, max=40)
    program = torch.export.export(
        module, (torch.randn(10, 6),), dynamic_shapes=(({0: rows},),), strict=False
    )
    ranges = {"N": tvm_fusion.DimRange(4, 40)}
    tvm_fusion.compile(program, "cpu", dims=ranges).export(tmp_path / "a")
    executable = tvm_fusion.load(tmp_path / "a")
    (given,) = (spec.name for spec in executable.signatures["main"].inputs)
    for length in (4, 7, 20, 40):
        x = torch.randn(length, 6)
        (result,) = executable.run({given: x.numpy()}).values()
        np.testing.assert_array_equal(result, module(x).numpy())


def test_a_number_that_may_be_negative_is_no_extent():
    module = Function(lambda i: torch.arange(i[0].item() + 1))
    program = torch.export.export(module, (torch.tensor([3]),))
    with pytest.raises(UserError, match=r"may be negative.*; say that it is not, before: torch._"):
        tvm_fusion.compile(program, "cpu")


def test_an_asserted_range_is_checked(tmp_path):
    """What torch concluded from it, such as how many rows a slice has, holds then."""
    program = torch.export.export(
        Function(sliced), (torch.randn(5, 4), torch.tensor([3, 1, 1, 0, 4]))
    )
    with recording() as decisions:
        folder = tvm_fusion.compile(program, "cpu").export(tmp_path / "a")
    assert not [d for d in decisions if d.code == "assertion"]
    x, i = program.graph_signature.user_inputs
    with contextlib.closing(RuntimeAlone()) as alone:

        def rows(count):
            numbers = np.array([count, 1, 1, 0, 4])
            results = alone.run(folder, {x: np.ones((5, 4), "float32"), i: numbers}, guarded=True)
            return [len(result) for result in results.values()]

        assert [rows(count) for count in (0, 4)] == [[0, 5, 4], [4, 1, 4]]
        for count in (-1, 5, 2**40, -(2**63), 2**63 - 1):
            with pytest.raises(UserError, match="do not fit the extents computed from these inp"):
                rows(count)


def window(x, i):
    start, count = i.tolist()
    for number in (start, count):
        torch._check(number >= 0)
    torch._check(start + count <= x.shape[0])
    torch._check(start % 2 == 0)
    torch._check(count != 3)
    return x.narrow(0, start, count) + 1


def test_asserted_relations_are_checked(tmp_path):
    program = torch.export.export(Function(window), (torch.ones(6, 4), torch.tensor([2, 4])))
    with recording() as decisions:
        folder = tvm_fusion.compile(program, "cpu").export(tmp_path / "a")
    assert not [d for d in decisions if d.code == "assertion"]
    x, i = program.graph_signature.user_inputs
    with contextlib.closing(RuntimeAlone()) as alone:

        def rows(*numbers):
            given = {x: np.ones((6, 4), "float32"), i: np.array(numbers)}
            (result,) = alone.run(folder, given, guarded=True).values()
            return len(result)

        assert [rows(0, 6), rows(4, 2), rows(2, 4), rows(6, 0)] == [6, 2, 4, 0]
        for numbers in ((4, 4), (1, 2), (2, 3), (2**62, 2**62)):
            with pytest.raises(UserError, match="do not fit the extents computed from these inp"):
                rows(*numbers)
