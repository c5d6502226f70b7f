"""Groups of rows, each multiplied by a matrix of its own, and counts by bins."""

import re

import numpy as np
import pytest

import tvm_fusion
from tvm_fusion.errors import UserError
from tvm_fusion.frontend import import_model

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


@pytest.mark.parametrize("behind", [0, 2])
@pytest.mark.parametrize("ends", [[2, 2, 5], [0, 7, 7], [1, 3, 6]])
@pytest.mark.parametrize("groups", [3, 9])
def test_grouped_products(run, ends, groups, behind):
    """Both forms: one sum over groups, and a matrix taken for each row; empty groups.

    Rows behind the last group, which PyTorch leaves as they are in memory, are zeros.
    """
    rows = ends[-1] + behind
    ends = [*ends, *[ends[-1]] * (groups - 3)]

    class Grouped(torch.nn.Module):
        def forward(self, x, weight, offs):
            weight = weight.bfloat16().transpose(1, 2)  # all that torch exports it for
            return torch.nn.functional.grouped_mm(x.bfloat16(), weight, offs=offs).float()

    def draw(*shape):
        return torch.randint(-3, 4, shape).float()  # exact in bfloat16, sums as well

    x, weight = draw(rows, 8), draw(groups, 16, 8)
    offs = torch.tensor(ends, dtype=torch.int32)
    program = torch.export.export(Grouped(), (x, weight, offs))
    assert any("grouped_mm" in str(node.target) for node in program.graph.nodes)
    mod = import_model(program).mod
    x, weight = draw(*x.shape), draw(*weight.shape)
    result = run(mod, x.numpy(), weight.numpy(), offs.numpy())
    of_row = np.searchsorted(ends, np.arange(ends[-1]), side="right")
    right = np.zeros((rows, 16))
    right[: ends[-1]] = np.einsum("sk,snk->sn", x.numpy()[: ends[-1]], weight.numpy()[of_row])
    np.testing.assert_array_equal(result, right)


def test_other_grouped_products_are_refused():
    """Groups of columns, say, as a gradient of weights has them."""

    class Grouped(torch.nn.Module):
        def forward(self, x, y, offs):
            return torch.nn.functional.grouped_mm(x.bfloat16(), y.bfloat16(), offs=offs)

    offs = torch.tensor([8, 16], dtype=torch.int32)
    program = torch.export.export(Grouped(), (torch.randn(8, 16), torch.randn(16, 8), offs))
    with pytest.raises(UserError, match="_grouped_mm of other ranks than 2 and 3"):
        import_model(program)


@pytest.mark.slow
def test_a_whole_mixture_of_experts(tmp_path):
    """A decoder of transformers with two of six experts for each token, sorted by expert."""
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "intermediate_size": 24, "num_hidden_layers": 1}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 64}
    config = transformers.OlmoeConfig(
        **sizes, num_experts=6, num_experts_per_tok=2, eos_token_id=1, pad_token_id=1
    )
    model = transformers.OlmoeForCausalLM(config).eval()
    model.set_experts_implementation("grouped_mm")

    class Logits(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, tokens):
            return self.model(tokens, use_cache=False).logits

    tokens = torch.randint(0, 64, (1, 13))
    program = torch.export.export(Logits(), (tokens,))
    executable = tvm_fusion.load(tvm_fusion.compile(program, "cpu").export(tmp_path / "model"))
    tokens = torch.randint(0, 64, (1, 13))
    (found,) = executable.run({"tokens": tokens.numpy()}).values()
    model.set_experts_implementation("batched_mm")  # takes float64
    with torch.no_grad():
        right = model.double()(tokens, use_cache=False).logits.numpy()
    np.testing.assert_allclose(found, right, rtol=1e-3, atol=1e-4 * np.abs(right).max())


def test_what_is_written_in_the_order_of_a_sort(run):
    """Each place comes once: an inverse permutation, with one write for each value."""

    class Written(torch.nn.Module):
        def forward(self, x, y):
            order = x.argsort(descending=True)
            place = torch.empty_like(order)
            place[order] = torch.arange(len(order))
            rows, columns = torch.empty_like(y), torch.empty_like(y.T)
            rows[order], columns[:, order] = y, y.T
            longer = y[:, 0].repeat(2)
            longer[order] = -x
            return place, rows, columns, longer

    x, y = torch.randn(9), torch.randn(9, 3)
    mod = import_model(torch.export.export(Written(), (x, y))).mod
    assert mod.script().count("R.max(") == 1  # of what is longer
    for found, right in zip(run(mod, x.numpy(), y.numpy()), Written()(x, y), strict=True):
        np.testing.assert_array_equal(found, right.numpy())


def test_places_are_sorted_in_32_bits(run):
    class Sorted(torch.nn.Module):
        def forward(self, x):
            chosen = x.topk(2, -1).indices.reshape(-1)
            return *chosen.sort(stable=True), x.long().sort(1).values

    x = torch.randn(5, 7) * 4
    mod = import_model(torch.export.export(Sorted(), (x,))).mod
    assert len(re.findall(r'R.astype\(\w+, dtype="int32"\)', mod.script())) == 1
    for found, right in zip(run(mod, x.numpy()), Sorted()(x), strict=True):
        np.testing.assert_array_equal(found, right.numpy())


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
