"""Graphs of GraphNet: how a sample is read and drawn, which are drawn, the page, one end to end."""

import pytest

pytest.importorskip("torch")
import torch

from benchmarks.graphnet.draw import VARIABLE, drawn, samples
from benchmarks.graphnet.reference import beyond, in_double, moved
from benchmarks.graphnet.sample import elements, load
from benchmarks.graphnet.table import page

pytestmark = pytest.mark.torch

MODEL = """
import torch
from torch import device


class GraphModule(torch.nn.Module):
    def forward(
        self,
        s1: torch.SymInt,
        L_x_: torch.Tensor,
        L_ids_: torch.Tensor,
        L_self_modules_fc_parameters_weight_: torch.nn.parameter.Parameter,
        L_self_modules_bn_buffers_running_var_: torch.Tensor,
    ):
        start = torch.zeros({width}, device=device(type="cuda", index=0))
        rows = torch.nn.functional.linear(L_x_ + start, L_self_modules_fc_parameters_weight_)
        picked = rows[:s1] / L_self_modules_bn_buffers_running_var_.sqrt()
        return (picked, L_ids_ + torch.tensor(1))
"""
META = """
class Program_weight_tensor_meta_{name}:
    name = "{name}"
    shape = {shape}
    dtype = "torch.{dtype}"
    device = "cuda:0"
    mean = {mean}
    std = {std}
    data = {data}
"""
WEIGHT, VAR = "L_self_modules_fc_parameters_weight_", "L_self_modules_bn_buffers_running_var_"


def write(root, name, width=7):
    folder = root / "samples" / name
    folder.mkdir(parents=True)
    (folder / "model.py").write_text(MODEL.replace("{width}", str(width)))
    metas = [
        ("s1", [], "int64", None, None, [2]),
        ("L_x_", [3, width], "float32", 0.5, 2.0, None),
        ("L_ids_", [2], "int64", None, None, None),
        (WEIGHT, [5, width], "float32", 0.0, float("inf"), None),
        (VAR, [5], "float32", 0.0, 1.0, None),
    ]
    keys = ("name", "shape", "dtype", "mean", "std", "data")
    texts = [META.format(**dict(zip(keys, meta, strict=True))) for meta in metas]
    texts = [text.replace("std = inf", 'std = float("inf")') for text in texts]
    (folder / "weight_meta.py").write_text("".join(texts[1:]))
    (folder / "input_meta.py").write_text(texts[0])
    return folder


def test_a_sample_is_a_module_of_its_inputs(tmp_path):
    module, inputs = load(write(tmp_path, "timm/tiny"))
    assert module.inputs == ["L_x_", "L_ids_"]
    assert module.sizes == {"s1": 2}
    x, ids = inputs
    assert x.shape == (3, 7)
    assert not ids.any()
    weight = getattr(module, WEIGHT)
    assert not weight.any()  # a deviation that is no number draws none
    assert (getattr(module, VAR) > 0).all()
    picked, _ = module(*inputs)
    assert picked.shape == (2, 5)
    assert elements(tmp_path / "samples/timm/tiny") == 21 + 2 + 35 + 5 + 1


def test_draws_are_even_and_of_each_architecture_once(tmp_path):
    for name in ("timm/a", "timm/b/c", "audio/d"):
        write(tmp_path, name)
    write(tmp_path, "timm/e", width=8)
    assert samples(tmp_path) == {"audio": ["audio/d"]}  # one text but for numbers
    other = tmp_path / "samples/timm/f"
    other.mkdir()
    (other / "model.py").write_text(MODEL.replace("L_ids_ +", "L_ids_ -"))
    assert samples(tmp_path)["timm"] == ["timm/f"]
    assert drawn(tmp_path, 5, 0, 1000) == ["audio/d"]  # nothing describes the other
    assert drawn(tmp_path, 5, 0, 10) == []


def test_the_page_tells_losses_and_reasons():
    right = {"outcome": "right", "ours_s": 2.0, "eager_s": 1.0, "error": 1e-7, "kernels": 3}
    refused = {"outcome": "refused", "reason": "no operator of that name"}
    graphs = {
        "timm/a": {"export": {"outcome": "right"}, "cpu": right, "sm_90a": refused},
        "nemo/b": {"export": {"outcome": "right"}, "cpu": refused},
        "nemo/c": {"export": {"outcome": "no program", "reason": "guards"}},
    }
    about = {"cpu": "CPU", "date": "2026-01-02T03", "seed": 1, "most": 10**6}
    text = page({"about": about, "graphs": graphs})
    assert "Of 3 graphs `torch.export` takes 2." in text
    assert "On the CPU 1 right, 1 refused; for sm_90a 1 refused." in text
    assert "| timm | 1 | 1 | 2.00 | 1 | 2.00 |" in text
    assert "**2.00**" in text
    assert "* nemo/b, cpu: refused: no operator of that name" in text
    assert "* nemo/c: guards" in text


@pytest.mark.cuda_toolchain
def test_a_graph_end_to_end(tmp_path, monkeypatch):
    from benchmarks.graphnet.worker import Case, outcome

    write(tmp_path, "timm/tiny")
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    with torch.no_grad():
        case = Case("timm/tiny", str(tmp_path))
        row = outcome(case, "cpu")
        assert row["outcome"] == "right", row
        assert row["ours_s"] > 0
        assert outcome(case, "sm_90a")["outcome"] == "compiles"


class Masked(torch.nn.Module):
    """Names its dtypes, as graphs of models in bfloat16 do."""

    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(8, 8)
        self.to(torch.bfloat16)

    def forward(self, x, mask):
        inverted = torch.tensor(1.0, dtype=torch.bfloat16) - mask.to(torch.bfloat16)
        bias = inverted.masked_fill(inverted.to(torch.bool), torch.finfo(torch.bfloat16).min)
        rows = self.fc(x + torch.zeros(8).bfloat16())[None]
        return torch.nn.functional.scaled_dot_product_attention(rows, rows, rows, attn_mask=bias)


class Ordered(torch.nn.Module):
    """Takes rows in the order of scores that are drawn ``apart``."""

    def __init__(self, apart):
        super().__init__()
        steps = apart if isinstance(apart, torch.Tensor) else apart * torch.arange(100.0)
        self.register_buffer("scores", 1 + steps)

    def forward(self, x):
        return x[self.scores.topk(50)[1]], x


def test_a_reference_in_float64_of_a_graph_that_names_its_dtypes():
    torch.manual_seed(0)
    module, x = Masked(), torch.randn(5, 8).bfloat16()
    mask = torch.tensor([1, 1, 1, 0, 0])
    with torch.no_grad():
        (found,) = in_double(module, (x, mask))
        rows = module.fc.weight.double() @ x.double().T + module.fc.bias.double()[:, None]
    weights = (rows.T @ rows[:, :3] / 8**0.5).softmax(-1)
    torch.testing.assert_close(found[0], weights @ rows.T[:3])
    assert torch.get_default_dtype() is torch.float32
    assert module.fc.weight.dtype is torch.bfloat16


@pytest.mark.parametrize(("apart", "jumps"), [(1e-3, False), (1e-6, True)])
def test_noise_moves_what_is_ordered_by_nearly_equal_scores(apart, jumps):
    module, x = Ordered(apart), torch.arange(100.0)
    expected = in_double(module, (x,))
    shares = moved(module, (x,), expected, [1e-4, 1e-4])
    assert (shares[0] > 0) is jumps
    assert shares[1] == 0


def test_shares_beyond_a_bound():
    expected = torch.tensor([0.0, 100.0, float("inf"), float("nan")])
    assert beyond(expected.numpy(), expected, 0) == 0
    assert beyond([0.02, 100.0, 3.0, float("nan")], expected, 1e-4) == 0.5
    assert beyond([0.0], expected, 1) == 1


def test_swaps_are_right_as_far_as_noise_makes_them():
    from benchmarks.graphnet.worker import Case

    case = Case.__new__(Case)
    case.inputs = (torch.arange(100.0),)

    def outcome(apart, swapped):
        case.module = Ordered(apart)
        case.eager = case.expected = in_double(case.module, case.inputs)
        got = [x.float().numpy().copy() for x in case.expected]
        for i in swapped:
            got[0][[i, i + 1]] = got[0][[i + 1, i]]
        return case.compared(got)["outcome"]

    scores = torch.linspace(1, 2, 100)
    scores[70] = scores[71] - 2e-7
    assert outcome(scores - 1, []) == "right"
    at = 99 - 71
    assert outcome(scores - 1, [at]) == "right"
    assert outcome(scores - 1, [0, at]) == "right"  # as many as 4 times
    assert outcome(scores - 1, [0, 2, 4, 6, 8]) == "wrong"
    assert outcome(1e-3, [at]) == "wrong"  # no noise moves that
    assert outcome(1e-7, [at]) == "wrong"  # all of it is noise
