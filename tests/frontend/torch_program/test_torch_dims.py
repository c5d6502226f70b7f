"""Symbolic extents of exported programs: multiples, names, files, ranges from zero."""

import io

import numpy as np
import pytest

import tvm_fusion
from tvm_fusion.config import FusionConfig
from tvm_fusion.errors import UserError
from tvm_fusion.frontend import import_model
from tvm_fusion.signature import DimRange

torch = pytest.importorskip("torch")

from tests.frontend.torch_functions import Function  # noqa: E402

pytestmark = pytest.mark.torch
functional = torch.nn.functional


class Pyramid(torch.nn.Module):
    """Down to a quarter and up again: extents are multiples of 4."""

    def forward(self, x):
        low = functional.avg_pool2d(functional.avg_pool2d(x, 2), 2)
        up = functional.interpolate(functional.interpolate(low, scale_factor=2), scale_factor=2)
        return up + x, functional.interpolate(low, size=x.shape[2:])


def export():
    h, w = torch.export.Dim("_h", min=1, max=16), torch.export.Dim("width", min=1, max=16)
    shapes = ({2: 4 * h, 3: 4 * w},)
    return torch.export.export(Pyramid(), (torch.randn(1, 2, 8, 12),), dynamic_shapes=shapes)


def saved(program):
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    return torch.export.load(file)


def test_multiples_go_down_and_up(run):
    imported = import_model(export())
    signature = imported.signatures["main"]
    assert signature.inputs[0].shape == (1, 2, "4*_h", "4*width")
    assert [s.shape for s in signature.outputs] == [(1, 2, "4*_h", "4*width")] * 2
    for extents in ((8, 20), (36, 12)):
        x = torch.randn(1, 2, *extents)
        for mine, right in zip(run(imported.mod, x.numpy()), Pyramid()(x), strict=True):
            np.testing.assert_allclose(mine, right.numpy(), rtol=1e-5, atol=1e-6)


def test_one_option_for_what_is_free():
    imported = import_model(export(), FusionConfig(dims={"_h": 3, "width": DimRange(2, 5)}))
    assert imported.signatures["main"].inputs[0].shape == (1, 2, 12, "4*width")
    assert imported.dims["width"] == DimRange(2, 5)


def test_multiples_of_a_program_from_a_file():
    imported = import_model(saved(export()))
    assert imported.signatures["main"].inputs[0].shape == (
        1, 2, "4*x_2_multiple", "4*x_3_multiple"
    )  # fmt: skip


def test_torch_still_fails_on_ranges_of_expressions():
    """When this fails, ``without_ranges_of_expressions`` is no longer needed."""
    with pytest.raises(AssertionError, match=r"expected sympy\.Symbol"):
        saved(export()).run_decompositions()


def test_two_inputs_of_one_dimension():
    class Sums(torch.nn.Module):
        def forward(self, x, y):
            return x.sum(0) + y.sum(0), x[1:]

    n = torch.export.Dim("n", min=2, max=16)
    args = (torch.randn(8, 3), torch.randn(5, 3))
    program = torch.export.export(Sums(), args, dynamic_shapes=({0: 4 * n}, {0: 2 * n + 1}))
    signature = import_model(program).signatures["main"]
    assert [s.shape for s in signature.inputs] == [("4*n", 3), ("2*n+1", 3)]
    assert signature.outputs[1].shape == ("4*n-1", 3)


def sliced(x):
    """Count documents in packed sequences, as decoders do: ``min(1, n)`` is 1 for torch alone."""
    steps = torch.diff(x, prepend=x[:, :1] - 1, dim=-1)
    pairs = steps[:, 1:] + steps[:, :-1]
    return (steps != 1).cumsum(-1) + x, pairs, x[:, -2:], x[:, -3:-1]


def test_slices_have_as_many_elements_as_torch_counts(run):
    n = torch.export.Dim("n", min=4, max=64)
    args = (torch.randint(0, 3, (2, 13)),)
    program = torch.export.export(Function(sliced), args, dynamic_shapes=(({1: n},),))
    imported = import_model(program)
    assert [s.shape for s in imported.signatures["main"].outputs[:3]] == [
        (2, "n"), (2, "n-1"), (2, 2)
    ]  # fmt: skip
    for extent in (4, 17):
        x = torch.randint(0, 3, (2, extent)).cumsum(1)
        for mine, right in zip(run(imported.mod, x.numpy()), sliced(x), strict=True):
            np.testing.assert_array_equal(mine, right.numpy())


def graph(x, edges, waves):
    """Send along edges, cut a batch of signals into frames, and transform them."""
    start, end = edges[0], edges[1]
    added = torch.zeros_like(x).index_add(0, end, x[start] * 2)
    put = torch.zeros_like(x).index_put((end,), x[start], accumulate=True)
    frames = waves.as_strided((waves.shape[0], 4, 6), (waves.shape[1], 3, 1))
    spectrum = torch.view_as_real(torch.fft.rfft(frames))
    back = torch.fft.irfft(torch.fft.rfft(waves), n=waves.shape[1])
    scaled = x * (x.shape[0] / (edges.shape[1] + 0.5)) + x.shape[0] ** 0.5
    picture = x[None, None]
    resized = [
        functional.interpolate(picture, size=(edges.shape[1], 5), mode=mode)
        for mode in ("nearest", "bilinear")
    ]
    table = torch.arange(12.0).reshape(4, 3)
    bags = functional.embedding_bag(end % 4, table, torch.arange(edges.shape[1]))
    norm = functional.instance_norm(waves.reshape(waves.shape[0], 3, 6))
    return added, put, frames, spectrum, back, scaled, bags, norm, x.std(0), *resized


def test_operators_over_symbolic_extents(tmp_path):
    sizes = [torch.export.Dim(name, min=2, max=64) for name in ("nodes", "edges", "batch")]

    def arguments(nodes, edges, batch):
        return (
            torch.randn(nodes, 3),
            torch.randint(0, nodes, (2, edges)),
            torch.randn(batch, 18),
        )

    shapes = (({0: sizes[0]}, {1: sizes[1]}, {0: sizes[2]}),)
    program = torch.export.export(Function(graph), arguments(5, 8, 3), dynamic_shapes=shapes)
    executable = tvm_fusion.load(tvm_fusion.compile(program).export(tmp_path / "artifact"))
    for extents in ((7, 12, 2), (11, 4, 5)):
        given = arguments(*extents)
        arrays = zip(program.graph_signature.user_inputs, given, strict=True)
        results = executable.run({name: x.numpy() for name, x in arrays}).values()
        for mine, right in zip(results, graph(*given), strict=True):
            np.testing.assert_allclose(mine, right.numpy(), rtol=1e-5, atol=2e-6)


def test_a_range_from_zero(tmp_path):
    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.linear = torch.nn.LayerNorm(8), torch.nn.Linear(8, 6)

        def forward(self, x):
            y = self.linear(self.norm(x))
            found = (y > 0).any(0), (y > 0).all(0)
            return functional.gelu(y).softmax(-1), torch.cat([y, y], 0), y.sum(0), x.T @ y, *found

    batch = torch.export.Dim("batch", min=0, max=8)
    module = Block().eval()
    program = torch.export.export(module, (torch.randn(3, 8),), dynamic_shapes=({0: batch},))
    assert import_model(program).dims == {"batch": DimRange(1, 8)}
    dims = {"batch": DimRange(0, 5)}
    with pytest.raises(
        UserError, match=r"batch=0\.\.5 for cuda; expected batch=1\.\.5, since empty"
    ):
        tvm_fusion.compile(program, "cuda:sm_90a", dims=dims)
    artifact = tvm_fusion.compile(program, "cpu", dims=dims)
    executable = tvm_fusion.load(artifact.export(tmp_path / "artifact"))
    for rows in (5, 0):
        x = torch.randn(rows, 8)
        with torch.no_grad():
            expected = module(x)
        results = executable.run({"x": x.numpy()}).values()
        for mine, right in zip(results, expected, strict=True):
            assert mine.shape == tuple(right.shape)
            np.testing.assert_allclose(mine, right.numpy(), rtol=1e-4, atol=1e-5)


class Ceiled(torch.nn.Module):
    """Windows of which the last reaches beyond the image, as many as the extents ask for."""

    def forward(self, x):
        low = functional.max_pool2d(x, 3, 2, ceil_mode=True)
        counted = functional.avg_pool2d(x, (3, 2), (2, 2), ceil_mode=True)
        without = functional.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False)
        return functional.max_pool2d(low, 2, ceil_mode=True), counted, without


def test_pooling_rounds_symbolic_extents_up(run):
    h, w = torch.export.Dim("h", min=2, max=16), torch.export.Dim("w", min=2, max=16)
    shapes = ({2: 4 * h - 1, 3: 4 * w - 2},)  # of which torch can tell how many windows there are
    imported = import_model(
        torch.export.export(Ceiled(), (torch.randn(2, 3, 11, 18),), dynamic_shapes=shapes)
    )
    for extents in ((7, 10), (19, 6)):
        x = torch.randn(2, 3, *extents) - 3  # beyond the image there is less than nothing
        for mine, right in zip(run(imported.mod, x.numpy()), Ceiled()(x), strict=True):
            np.testing.assert_allclose(mine, right.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("function", "match"),
    [
        (lambda x: functional.max_pool2d(x, 2, 2, 1, ceil_mode=True), "may begin in the padding"),
        (lambda x: functional.avg_pool2d(x, 3, 2, 1, ceil_mode=True), "counted padding"),
    ],
)
def test_pooling_that_symbolic_extents_decide_is_refused(function, match):
    class Pool(torch.nn.Module):
        def forward(self, x):
            return function(x)

    shapes = ({2: 2 * torch.export.Dim("h", min=3, max=32) - 1},)
    program = torch.export.export(Pool(), (torch.randn(1, 2, 11, 8),), dynamic_shapes=shapes)
    with pytest.raises(UserError, match=match):
        import_model(program)


def test_steps_of_a_dimension_that_is_written_as_a_multiple():
    rows = torch.export.Dim("rows", min=1, max=64)
    program = torch.export.export(
        torch.nn.ReLU(), (torch.ones(8, 3),), dynamic_shapes=({0: 2 * rows},)
    )
    imported = import_model(program, FusionConfig(dims={"rows": DimRange(3, 33, 4)}))
    assert imported.dims["rows"] == DimRange(4, 32, 4)
    (spec,) = imported.signatures["main"].inputs
    assert spec.shape == ("2*rows", 3)
