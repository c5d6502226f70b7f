"""Operators of an exported program carry the paths of the modules that call them."""

import pytest

import tvm_fusion
from tvm_fusion.core.names.source import Source, bindings_of, names_of, sources_of
from tvm_fusion.frontend import import_model

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::FutureWarning")]


class Attention(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.q, self.k, self.v, self.out = (torch.nn.Linear(width, width) for _ in range(4))

    def forward(self, x):
        scores = self.q(x) @ self.k(x).transpose(-1, -2)
        return self.out(torch.softmax(scores, -1) @ self.v(x))


class Layer(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.attention, self.norm = Attention(width), torch.nn.LayerNorm(width)

    def forward(self, x):
        return self.norm(x + self.attention(x))


class Encoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([Layer(32), Layer(32)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return torch.tanh(x)


class Branch(torch.nn.Module):
    def forward(self, x):
        return torch.cond(x.sum() > 0, torch.relu, torch.exp, (x,))


@pytest.fixture(scope="module")
def program():
    return torch.export.export(Encoder().eval(), (torch.randn(2, 8, 32),))


def test_paths_of_modules(program):
    mod = import_model(program).mod
    found = [sources_of(b.var) for b in bindings_of(mod["main"].body)]
    assert all(found)
    names = {name for own in found for name in names_of(own)}
    assert {"layers.0.attention.q", "layers.1.attention", "layers.0", "layers.1.norm"} <= names
    # What the model itself calls has no path: it is called as its node.
    assert found[-1] == (Source("", ("tanh",)),)


def test_a_joined_product_names_all_three(program):
    explanation = tvm_fusion.explain(program, "cpu:x86-64-v3", stock=False)
    joined = [f"layers.1.attention.{letter}" for letter in "qkv"]
    products = [
        member.names
        for group in explanation.of("layers.1.attention").groups
        for member in group.members
        if member.title == "matmul"
    ]
    assert tuple(joined) in products
    found = {name for group in explanation.of("layers.*.norm").groups for name in group.names}
    assert {"layers.0.norm", "layers.1.norm"} <= found


def test_names_in_branches():
    mod = import_model(torch.export.export(Branch(), (torch.randn(4),))).mod
    names = {
        name
        for gvar, func in mod.functions.items()
        for b in bindings_of(func.body)
        for name in names_of(sources_of(b.var))
    }
    assert {"relu", "exp", "cond"} <= names  # torch keeps no paths in branches
