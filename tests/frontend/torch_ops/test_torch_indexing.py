"""PyTorch's indexing: numbers from the end, several indices at once, slices that are written."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import tvm_fusion  # noqa: E402
from tests.frontend.torch_functions import Function  # noqa: E402
from tvm_fusion.frontend import import_model  # noqa: E402

pytestmark = pytest.mark.torch

READS = {
    "last": lambda x, i: x[:, -1],
    "first": lambda x, i: x[2],
    "some": lambda x, i: x[:, i[0]],
    "table": lambda x, i: x[i],
    "constants": lambda x, i: x[:, torch.tensor([-1, -2])],
    "pairs": lambda x, i: x[i[0], i[1]],
    "pairs_inside": lambda x, i: x[:, i[0], i[1]],
    "pairs_apart": lambda x, i: x[i[0], :, i[1]],
    "each_with_each": lambda x, i: x[i[0][:, None], i[1]],
    "triples": lambda x, i: x[i[0], i[1], i[1]],
}


@pytest.mark.parametrize("name", READS)
def test_reads(run, name):
    module = Function(READS[name])
    x, i = torch.randn(5, 6, 7), torch.tensor([[-1, 2, -3], [0, -2, 1]])
    imported = import_model(torch.export.export(module, (x, i)))
    result = run(imported.mod, x.numpy(), i.numpy())
    np.testing.assert_array_equal(result, module(x, i).numpy())


@pytest.mark.parametrize(
    ("places", "counts_from_end"),
    [
        (lambda x: torch.topk(x, 2, -1).indices.reshape(-1), False),
        (lambda x: x.argsort(-1)[:, :2], True),  # what was sliced of it is not followed
        (lambda x: x.argmax(-1), False),
        (lambda x: torch.topk(x, 2, -1).values.to(torch.int64), True),
    ],
)
def test_places_that_a_sort_gave_count_from_the_start(run, places, counts_from_end):
    module = Function(lambda x, table: table[places(x)])
    x, table = torch.rand(3, 5), torch.randn(5, 4)
    imported = import_model(torch.export.export(module, (x, table)))
    assert ("R.where" in imported.mod.script()) == counts_from_end
    result = run(imported.mod, x.numpy(), table.numpy())
    np.testing.assert_array_equal(result, module(x, table).numpy())


@pytest.mark.parametrize(
    ("shifts", "axes"), [((-3, 2), (1, 2)), (4, 0), (9, ()), ((1, 1), (0, 0))], ids=str
)
def test_rolls_are_movement(run, shifts, axes):
    """Slices side by side, which kernels absorb, no tensors of indices."""
    module = Function(lambda x: torch.roll(x, shifts, axes))
    x = torch.randn(5, 6, 7)
    imported = import_model(torch.export.export(module, (x,)))
    np.testing.assert_array_equal(run(imported.mod, x.numpy()), module(x).numpy())
    text = imported.mod.script()
    assert "R.concat" in text
    assert "R.take" not in text


SHIFTS = {"right": lambda x: 2, "left": lambda x: -9, "half": lambda x: x.shape[0] // 2}


@pytest.mark.parametrize("name", SHIFTS)
def test_rolls_along_an_extent_that_is_known_at_run_time(run, name):
    module = Function(lambda x: torch.roll(x, (SHIFTS[name](x), 1), (0, 1)))
    n = torch.export.Dim("n", min=2, max=64)
    x = torch.randn(5, 6, 7)
    imported = import_model(torch.export.export(module, (x,), dynamic_shapes=(({0: n},),)))
    for rows in (5, 8):
        x = torch.randn(rows, 6, 7)
        np.testing.assert_array_equal(run(imported.mod, x.numpy()), module(x).numpy())


def put(x, i, v):
    x = x.clone()
    x[:, i] = v
    return x * 2


SYMBOLIC = {
    "last": (lambda x, i, v: x[:, -1] * 2, 1),
    "some": (lambda x, i, v: x[:, i] * 2, 1),
    "pairs": (lambda x, i, v: x[i, i] * 2, 0),
    "pairs_apart": (lambda x, i, v: x[i, :, i - 1] * 2, 1),
    "written": (put, 1),
}


@pytest.mark.parametrize("name", SYMBOLIC)
def test_axes_whose_extents_are_known_at_run_time(tmp_path, name):
    function, axis = SYMBOLIC[name]
    module = Function(function)

    def draw(n):
        x = torch.randn([n if a == axis else 7 for a in range(3)])
        return x, torch.tensor([-1, 2]), torch.randn(7, 2, 7)

    dims = ({axis: torch.export.Dim("n", min=4, max=99)}, {}, {})
    program = torch.export.export(module, draw(5), dynamic_shapes=(dims,))
    tvm_fusion.compile(program).export(tmp_path / name)
    executable = tvm_fusion.load(tmp_path / name)
    names = [spec.name for spec in executable.signatures["main"].inputs]
    for n in (4, 7, 99):
        arguments = draw(n)
        given = dict(zip(names, (a.numpy() for a in arguments), strict=True))
        (result,) = executable.run(given).values()
        np.testing.assert_allclose(result, module(*arguments).numpy(), rtol=1e-6)


def test_one_value_is_written_where_a_mask_holds(run):
    def write(x, value):
        x = x.clone()
        x[x[:, :, 0] > 0] = value
        return x

    x, value = torch.randn(3, 5, 2), torch.tensor(7.0)
    imported = import_model(torch.export.export(Function(write), (x, value)))
    result = run(imported.mod, x.numpy(), value.numpy())
    np.testing.assert_array_equal(result, write(x, value).numpy())


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("indices", [[4], [-1], [3, 0, -2], [1, 1]], ids=str)
def test_slices_are_written(run, axis, indices):
    class Write(torch.nn.Module):
        def forward(self, x, index, values):
            return x.index_copy(axis, index, values)

    x, index = torch.randn(5, 6, 7), torch.tensor(indices)
    shape = [len(indices) if i == axis else n for i, n in enumerate(x.shape)]
    values = torch.randn(shape)
    imported = import_model(torch.export.export(Write(), (x, index, values)))
    result = run(imported.mod, x.numpy(), index.numpy(), values.numpy())
    expected = x.numpy().copy()
    expected[(slice(None),) * axis + (np.array(indices),)] = values.numpy()
    np.testing.assert_array_equal(result, expected)


def test_values_of_slices_are_spread(run):
    class Fill(torch.nn.Module):
        def forward(self, x, index, value):
            x = x.clone()
            x[:, index] = value
            return x

    x, index, value = torch.randn(3, 6, 2), torch.tensor([5, 2]), torch.randn(2)
    imported = import_model(torch.export.export(Fill(), (x, index, value)))
    result = run(imported.mod, x.numpy(), index.numpy(), value.numpy())
    np.testing.assert_array_equal(result, Fill()(x, index, value).numpy())
