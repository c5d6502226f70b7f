"""``torch.compile(model, backend="tvm_fusion")``: what a call returns and changes, as PyTorch."""

import copy
import re
import sys

import numpy as np
import pytest

import tvm_fusion
from tvm_fusion.errors import UserError

pytestmark = [
    pytest.mark.torch,
    pytest.mark.usefixtures("registered_backend", "plain_llvm"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
torch = pytest.importorskip("torch")
nn, functional = torch.nn, torch.nn.functional
pytree = pytest.importorskip("torch.utils._pytree")


@pytest.fixture(autouse=True)
def _inference():
    torch.manual_seed(int(np.random.default_rng().integers(1 << 30)))
    with torch.no_grad():
        yield


def compiled(model, **options):
    dynamic = options.pop("dynamic", None)
    return torch.compile(model, backend="tvm_fusion", dynamic=dynamic, options=options)


def assert_same(found, expected, tolerance=1e-4):
    pairs = zip(pytree.tree_leaves(found), pytree.tree_leaves(expected), strict=True)
    for one, other in pairs:
        assert type(one) is type(other)
        if isinstance(one, torch.Tensor):
            assert one.stride() == other.stride()
            torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance, equal_nan=True)
        else:
            assert one == other


def assert_runs_alike(model, *calls, tolerance=1e-4, **options):
    """Compare results, buffers and arguments after each call with PyTorch's."""
    alone = copy.deepcopy(model) if isinstance(model, nn.Module) else model
    program = compiled(model, **options)
    for arguments in calls:
        others = pytree.tree_map_only(torch.Tensor, torch.clone, arguments)
        assert_same(program(*arguments), alone(*others), tolerance)
        assert_same(arguments, others, tolerance)
        if isinstance(model, nn.Module):
            assert_same([*model.buffers()], [*alone.buffers()], tolerance)


class Mixed(nn.Module):
    """Parameters, a buffer that is written to, numbers, None and an alias among the results."""

    def __init__(self):
        super().__init__()
        self.fc, self.norm = nn.Linear(8, 8), nn.BatchNorm1d(8)
        self.register_buffer("seen", torch.zeros(4, 8))

    def forward(self, x, factor):
        y = self.norm(self.fc(x))
        self.seen[:2] = y[:2]
        q = y.view(1, -1, 2, 4).transpose(1, 2)
        z = functional.scaled_dot_product_attention(q, q, q)
        return {"y": y * factor, "z": [z, None, x.shape[0] * 2], "x": x.view(-1), "s": self.seen}


def test_results_of_all_kinds():
    assert_runs_alike(Mixed().eval(), (torch.randn(4, 8), 3), (torch.randn(4, 8), 3))


def test_sizes_and_numbers_that_vary():
    model = Mixed().eval()
    calls = [(torch.randn(n, 8), factor) for n, factor in ((4, 3), (6, 3), (6, 5), (33, 5))]
    assert_runs_alike(model, *calls, dynamic=True)


def test_one_graph_serves_a_range_of_sizes():
    program = compiled(lambda x: functional.softmax(x @ x.T, -1), dynamic=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for n in (4, 5, 9, 16, 40):
            x = torch.randn(n, 3)
            assert_same(program(x), functional.softmax(x @ x.T, -1))


def test_a_graph_break_gives_two_graphs():
    def model(x):
        y = x.relu() + 1
        if y.sum() > 1e9:  # a value that only a run knows
            return y
        view = y.view(-1)
        print(end="")
        view.add_(1)
        return (y @ y.T).tanh()

    assert_runs_alike(model, (torch.randn(3, 4),))
    assert torch._dynamo.explain(model)(torch.randn(3, 4)).graph_count >= 2


def test_parameters_are_read_where_they_are():
    model = nn.Linear(4, 3)
    program, x = compiled(model), torch.randn(2, 4)
    assert_same(program(x), model(x))
    model.weight.add_(1)  # in place, as an optimizer does
    assert_same(program(x), model(x))
    model.weight.data = torch.randn(3, 4)  # elsewhere
    assert_same(program(x), model(x))


def test_frozen_parameters_are_constants():
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval()
    program, x = compiled(model, freeze=True), torch.randn(1, 2, 6, 6)
    before = model(x)
    assert_same(program(x), before)
    model[0].weight.mul_(2)
    assert_same(program(x), before)


def test_frozen_parameters_of_several_modules():
    """Their parameters have the same paths in modules that are no part of another."""
    one, other = nn.Linear(4, 4), nn.Linear(4, 4)
    assert_runs_alike(lambda x: one(x) - other(x), (torch.randn(2, 4),), freeze=True)


@pytest.mark.parametrize(
    ("source", "path"),
    [
        ("L['self']._modules['fc']._parameters['weight']", "fc.weight"),
        ("L['fn'].2", "2"),
        ("G['net']._modules['layers']._modules['0']._buffers['mean']", "net.layers.0.mean"),
        ("G['self_made'].net._modules['a b']", "self_made.net.a b"),
        ("L['args'][0]", "args.0"),
        ("layers.0", "layers.0"),
    ],
)
def test_names_are_the_users(source, path):
    from tvm_fusion.frontend.torch_ops.importer import path_of

    assert path_of(source) == path


def test_strides_are_those_of_pytorch():
    convolution = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    x = torch.randn(2, 3, 6, 6).to(memory_format=torch.channels_last)
    assert_runs_alike(convolution, (x,), (x[:, :, ::2].contiguous(),))
    assert_runs_alike(lambda x: (x.T + 1, x[::2] * 2), (torch.randn(4, 6).T,))
    assert_runs_alike(lambda x, y: x.add_(y.expand(3, 4)), (torch.randn(4, 3).T, torch.randn(1)))


@pytest.mark.parametrize(
    "dtype", ["float16", "bfloat16", "float64", "int64", "int8", "uint8", "bool"]
)
def test_element_types(dtype):
    x = torch.randint(0, 2, (3, 5)).to(getattr(torch, dtype))
    assert_runs_alike(lambda x, n: (torch.where(x == 0, x, n), x[1:]), (x, x[0, 0]))


class Caches(nn.Module):
    """Several caches, of which a step writes one position each."""

    def __init__(self, count):
        super().__init__()
        for i in range(count):
            self.register_buffer(f"keys_{i}", torch.zeros(2, 8, 4))

    def forward(self, x, position):
        for keys in self.buffers():
            keys.index_copy_(1, position, x)
            x = keys.sum(1, keepdim=True)
        return x


def test_a_cache_is_written_at_one_position():
    calls = [(torch.randn(2, 1, 4), torch.tensor([i])) for i in (0, 1, 5)]
    assert_runs_alike(Caches(1), *calls)


def test_a_cache_that_is_replaced():
    model, alone = Caches(1), Caches(1)
    program = compiled(model)
    for _ in range(2):
        x, position = torch.randn(2, 1, 4), torch.tensor([3])
        assert_same([program(x, position), model.keys_0], [alone(x, position), alone.keys_0])
        model.keys_0, alone.keys_0 = torch.ones(2, 8, 4), torch.ones(2, 8, 4)


@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        (lambda: nn.Linear(8, 8), lambda: (torch.randn(4, 8),)),
        (lambda: Caches(12), lambda: (torch.randn(2, 1, 4), torch.tensor([3]))),
    ],
    ids=["parameters", "caches"],
)
def test_a_call_is_little_python(model, inputs):
    """A small model takes as long as what is called around its kernels."""
    program, inputs = compiled(model()), inputs()
    program(*inputs)
    called = []

    def profile(frame, event, _argument):
        if event == "call" and "/tvm_fusion/" in frame.f_code.co_filename:
            called.append(frame.f_code.co_name)

    sys.setprofile(profile)
    try:
        program(*inputs)
    finally:
        sys.setprofile(None)
    assert len(called) <= 20, called


def test_tensors_that_a_function_makes():
    bounds = torch.tensor([-1.0, 0.0, 1.0])
    assert_runs_alike(
        lambda x: torch.bucketize(x, torch.tensor([-1.0, 1.0])) + torch.bucketize(x, bounds),
        (torch.randn(3, 5),),
    )


def test_autocast():
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.GroupNorm(2, 8))
    with torch.autocast("cpu", torch.bfloat16):
        assert_runs_alike(model, (torch.randn(4, 8),), tolerance=3e-2)


def test_extents_that_turn_out_to_be_the_same():
    """Keys and values that grow: torch learns of it while the graph is compiled."""

    def step(keys, values, q):
        joined = torch.cat([keys, q], 2), torch.cat([values, q], 2)
        return functional.scaled_dot_product_attention(q, *joined)

    calls = [(torch.randn(1, 2, n, 4), torch.randn(1, 2, n, 4)) for n in (3, 4, 5)]
    assert_runs_alike(step, *((*pair, torch.randn(1, 2, 1, 4)) for pair in calls))


def test_under_inference_mode():
    model = nn.Linear(4, 3)
    program = compiled(model)
    with torch.inference_mode():
        x = torch.randn(2, 4)
        assert_same(program(x), model(x))


def test_recurrent_layers_and_constants():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(4, 5, batch_first=True)

        def forward(self, x):
            y, (h, _) = self.lstm(x)
            return y + torch.arange(5) * torch.tensor([0.5]), h

    assert_runs_alike(Model().eval(), (torch.randn(2, 3, 4),))


def failure(program, *arguments):
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as caught:
        program(*arguments)
    assert isinstance(caught.value.inner_exception, UserError)
    return str(caught.value.inner_exception)


def test_training_is_refused():
    with torch.enable_grad():
        message = failure(compiled(nn.Linear(3, 3)), torch.randn(2, 3))
        assert compiled(nn.Linear(3, 3).requires_grad_(False))(torch.randn(2, 3)).shape == (2, 3)
    assert re.match(r"the graph is to be trained: .* call the model under torch.infere", message)


def unsupported(x):
    return torch.linalg.ldl_factor(x @ x.T)[0] + 1


def test_complex_tensors():
    factor = nn.Parameter(torch.randn(5, dtype=torch.complex64))

    def model(x, z):
        z.mul_(2j)
        return torch.fft.rfft(x) * factor, torch.complex(x, -x).T, z.conj().abs()

    z = torch.randn(3, 2, dtype=torch.complex64)
    assert_runs_alike(model, (torch.randn(2, 8), z), (torch.randn(2, 8), z.T))


def test_an_unsupported_operator_is_named():
    message = failure(compiled(unsupported), torch.randn(3, 3))
    assert "aten.linalg_ldl_factor_ex" in message
    assert "options={'fallback': True}" in message


def test_pytorch_runs_what_cannot_be_compiled():
    x = torch.randn(3, 3)
    with pytest.warns(UserWarning, match=r"PyTorch runs this graph: .*linalg_ldl_factor_ex"):
        assert_same(compiled(unsupported, fallback=True)(x), unsupported(x))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"precison": "fp16"}, "there is no option 'precison'; expected one of precision."),
        ({"precision": "fp8"}, "precision 'fp8'; expected one of fp32, fp16, bf16"),
        ({"freeze": "yes"}, "freeze is 'yes'; expected True or False"),
        ({"target": "gpu", "fallback": True}, "unknown target 'gpu'; expected cpu"),
        ({"cache": 3, "fallback": True}, "cache is 3; expected True, False or a folder"),
        ({"dims": {}}, "there is no option 'dims'"),
    ],
)
def test_options_are_checked(options, words):
    assert words in failure(compiled(torch.relu, **options), torch.randn(2))


def test_a_module_is_to_be_exported():
    with pytest.raises(UserError, match=r"type Linear.*export it by torch\.export\.export"):
        tvm_fusion.compile(nn.Linear(2, 2))


def test_a_mode_is_refused():
    program = torch.compile(torch.relu, backend="tvm_fusion", mode="max-autotune")
    assert "mode 'max-autotune'; expected options={...}" in failure(program, torch.randn(2))


def test_half_precision_of_frozen_weights():
    model = nn.Linear(16, 8)
    assert_runs_alike(model, (torch.randn(3, 16),), tolerance=2e-2, freeze=True, precision="bf16")


def test_where_ranges_fail_extents_alone_are_compiled(monkeypatch):
    from tvm_fusion.torch_backend import graph

    compile_model, dims = graph.compile, []

    def failing(model, target, config, **options):
        dims.append([*config.dims.values()])
        if any(one.low != one.high for one in dims[-1]):
            raise ValueError("an extent that is not known")
        return compile_model(model, target, config, **options)

    monkeypatch.setattr(graph, "compile", failing)
    program = compiled(torch.relu, dynamic=True, cache=False)
    for n in (3, 5, 3):
        x = torch.randn(n)
        assert_same(program(x), x.relu())
    assert len(dims) == 4


def test_a_number_that_cannot_be_compiled_in_runs_in_pytorch(monkeypatch):
    from tvm_fusion.torch_backend import graph

    def failing(*_, **__):
        raise UserError("a number")

    monkeypatch.setattr(graph, "compile", failing)
    program = compiled(lambda x, n: x * n, dynamic=True, fallback=True)
    with pytest.warns(UserWarning, match="PyTorch runs this graph: a number"):
        assert_same(program(torch.ones(3), 7), torch.full((3,), 7.0))
