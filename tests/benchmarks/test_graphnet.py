"""Graphs of GraphNet: how a sample is read and drawn, which are drawn, the page, one end to end."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
import torch

from benchmarks.graphnet.draw import VARIABLE, drawn, samples
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
