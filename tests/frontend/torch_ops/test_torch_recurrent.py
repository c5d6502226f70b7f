"""torch.nn.LSTM, GRU and RNN, one kernel a layer."""

import numpy as np
import pytest

import tvm_fusion
from tvm_fusion.frontend import import_model

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:The tensor attributes:UserWarning"),
]


class Model(torch.nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = layers

    def forward(self, x, *states):
        outputs, last = self.layers(x, *states)
        return (outputs, *(last if isinstance(last, tuple) else (last,)))


def exported(kind, *arguments, **options):
    model = Model(getattr(torch.nn, kind)(5, 7, **options)).eval()
    return model, torch.export.export(model, arguments)


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_layers": 3, "bias": False},
        {"bidirectional": True, "num_layers": 2, "batch_first": True},
    ],
)
def test_layers(kind, options, run):
    x = torch.randn(4, 3, 5)
    model, program = exported(kind, x, **options)
    for got, want in zip(run(import_model(program).mod, x.numpy()), model(x), strict=True):
        np.testing.assert_allclose(got, want.detach().numpy(), rtol=1e-5, atol=1e-6)


def test_relu_and_initial_states(run):
    x, h = torch.randn(4, 3, 5), torch.randn(4, 3, 7)
    options = {"num_layers": 2, "bidirectional": True, "nonlinearity": "relu"}
    model, program = exported("RNN", x, h, **options)
    found = run(import_model(program).mod, x.numpy(), h.numpy())
    for got, want in zip(found, model(x, h), strict=True):
        np.testing.assert_allclose(got, want.detach().numpy(), rtol=1e-5, atol=1e-6)


def test_one_kernel_a_layer_besides_its_gemm(tmp_path):
    x = torch.randn(50, 3, 5)
    model, program = exported("LSTM", x, num_layers=2)
    artifact = tvm_fusion.compile(program)
    assert artifact.manifest["functions"]["main"]["kernels"] <= 5
    artifact.export(tmp_path / "model")
    found = list(tvm_fusion.load(tmp_path / "model")(x=x.numpy()).values())
    for got, want in zip(found, model(x), strict=True):
        np.testing.assert_allclose(np.asarray(got), want.detach().numpy(), rtol=1e-5, atol=1e-6)


def test_projected_states_are_decomposed(run):
    x = torch.randn(3, 2, 5)
    model, program = exported("LSTM", x, proj_size=2)
    for got, want in zip(run(import_model(program).mod, x.numpy()), model(x), strict=True):
        np.testing.assert_allclose(got, want.detach().numpy(), rtol=1e-5, atol=1e-6)
