"""cond, while_loop, scan, associative_scan and map against eager torch."""

import numpy as np
import pytest

import tvm_fusion

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::FutureWarning")]

from torch._higher_order_ops.associative_scan import associative_scan_op  # noqa: E402
from torch._higher_order_ops.map import map as map_slices  # noqa: E402
from torch._higher_order_ops.scan import scan  # noqa: E402
from torch._higher_order_ops.while_loop import while_loop  # noqa: E402
from torch.utils import _pytree as pytree  # noqa: E402


class Function(torch.nn.Module):
    """A layer and constants that graphs inside a node read from around it."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        self.layer = torch.nn.Linear(5, 5)
        self.register_buffer("three", torch.tensor(3))

    def forward(self, *arguments):
        return self.function(self, *arguments)


@pytest.fixture
def same(tmp_path):
    """Export, compile, load and run a function; compare with eager torch for every sample."""

    def check(function, *samples, shapes=None):
        module = Function(function).eval()
        shapes = shapes and (shapes,)
        program = torch.export.export(module, samples[0], dynamic_shapes=shapes)
        artifact = tvm_fusion.compile(program, "cpu")
        executable = tvm_fusion.load(artifact.export(tmp_path / "a"))
        for arguments in samples:
            leaves = pytree.tree_leaves(arguments)
            names = program.graph_signature.user_inputs
            given = {n: x.numpy() for n, x in zip(names, leaves, strict=True)}
            found = list(executable.run(given).values())
            with torch.no_grad():
                wanted = pytree.tree_leaves(module(*arguments))
            assert len(found) == len(wanted)
            for one, other in zip(found, wanted, strict=True):
                other = np.asarray(other)
                assert (one.dtype, one.shape) == (other.dtype, other.shape)
                np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-6)
        return artifact.manifest["functions"]["main"]["kernels"]

    return check


def counter():
    return torch.zeros((), dtype=torch.int64)


def test_while_loop_whose_trips_an_input_says(same):
    def function(self, x, n):
        def step(i, x):
            return i + 1, torch.tanh(self.layer(x)) + x * i

        return while_loop(lambda i, x: i < n, step, (counter(), x))

    x = torch.randn(3, 5)
    same(function, *((x, torch.tensor(n)) for n in (4, 0, 1, 7)))


@pytest.mark.parametrize("first", [lambda: 0, counter], ids=["number", "tensor"])
def test_a_known_number_of_trips_leaves_no_loop(same, first):
    def function(self, x):
        return while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, torch.tanh(x)), (first(), x))

    assert same(function, (torch.randn(3, 5),)) <= 2


def test_many_trips_that_a_buffer_says(same):
    def function(self, x):
        def step(i, x):
            return i + 1, torch.tanh(self.layer(x)) + i * 0.001

        return while_loop(lambda i, x: i < self.three * 131, step, (counter(), x))[1]

    same(function, (torch.randn(3, 5),))


def test_a_number_as_state_and_a_condition_over_values(same):
    def function(self, x, limit):
        return while_loop(lambda i, x: x.sum() < limit, lambda i, x: (i + 2, x + 1), (0, x))

    x = torch.zeros(3, 5)
    same(function, *((x, torch.tensor(limit)) for limit in (40.0, -1.0)))


def test_a_loop_and_a_branch_inside_a_loop(same):
    def function(self, x, n):
        def outer(i, x):
            def inner(j, y):
                return j + 1, torch.tanh(self.layer(y))

            _, y = while_loop(lambda j, y: j < i, inner, (counter(), x))
            y = torch.cond(y.sum() > 0, lambda y: y * 0.5 - i, lambda y: torch.cos(y), (y,))
            return i + 1, y

        return while_loop(lambda i, x: i < n, outer, (counter(), x))[1]

    x = torch.randn(3, 5)
    same(function, *((x, torch.tensor(n)) for n in (3, 4)))


def recurrence(self, state, x):
    def step(state, x):
        state = torch.tanh(self.layer(state) + x["a"] * x["b"])
        return state, {"twice": state * 2, "sum": state.sum()}

    return scan(step, state, x, dim=1, reverse=True)


def test_scan_backwards_over_several_tensors(same):
    x = {"a": torch.randn(5, 7), "b": torch.randn(5, 7)}
    same(recurrence, (torch.randn(5), x))


def test_scan_over_a_symbolic_length(same):
    def function(self, state, x):
        def step(state, x):
            state = torch.tanh(self.layer(state) + x)
            return state, state * 2

        return scan(step, state, x)

    length = torch.export.Dim("length", min=1, max=64)
    samples = [(torch.randn(5), torch.randn(n, 5)) for n in (7, 1, 64)]
    same(function, *samples, shapes=(None, {0: length}))


def test_associative_scan(same):
    def function(self, x, y):
        return associative_scan_op(lambda a, b, c, d: (a * c, b * c + d), [x, y], ())

    same(function, (torch.randn(7, 5), torch.randn(7, 5)))


def test_map(same):
    def function(self, x, y):
        return map_slices(lambda a, b: torch.sin(self.layer(a) + b), x, y)

    same(function, (torch.randn(7, 5), torch.randn(5)))


def test_cond_over_values(same):
    def function(self, x):
        def yes(x):
            return self.layer(x) + 1, x @ x.transpose(0, 1)

        def no(x):
            return torch.sin(self.layer(x)), x @ x.transpose(0, 1) * 2

        return torch.cond(x.sum() > 0, yes, no, (x,))

    x = torch.randn(3, 5).abs()
    same(function, (x,), (-x,))


def test_cond_over_a_symbolic_extent(same):
    def function(self, x):
        def many(x):
            return self.layer(x).sum(0)

        def few(x):
            return torch.sin(x).sum(0) * x.shape[0]

        return torch.cond(x.shape[0] > 4, many, few, (x,))

    rows = torch.export.Dim("rows", min=2, max=64)
    same(function, *((torch.randn(n, 5),) for n in (6, 4, 5)), shapes=({0: rows},))


def test_a_constant_condition_leaves_no_branch(same):
    def function(self, x):
        return torch.cond(self.three > 2, lambda x: x + 1, lambda x: x - 1, (x,))

    assert same(function, (torch.randn(3, 5),)) == 1


def test_complex_tensors_inside_are_refused():
    def function(self, x):
        return torch.cond(x.sum() > 0, torch.fft.fft, lambda x: torch.fft.fft(x * 2), (x,))

    program = torch.export.export(Function(function), (torch.randn(3, 5),))
    with pytest.raises(tvm_fusion.UserError, match=r"cond on complex tensors .*; keep real and im"):
        tvm_fusion.compile(program, "cpu")
