"""Whole models on a GPU: seeded weights that do not travel, the check, the page."""

import json
import math

import numpy as np
import pytest

from benchmarks.gpu_models import table, weights
from tvm_fusion.deploy.runtime.artifact import manifest
from tvm_fusion.errors import UserError

KERNELS = [["gemm", 0.0, 3.0], ["norm", 1.5, 2.5], ["gemm", 4.5, 3.0]]
PROFILE = {
    "kernels": KERNELS,
    "busy_us": 7.0,
    "span_us": 7.5,
    "driver": {"cudaGraphLaunch": [1.0, 6.2]},
}
ROW = {
    "name": "bert_batch_1", "wrong": None, "kernels": 3, "host_launches": 3, "compile_s": 9.6,
    "processor_s": 12.0, "us": {"ours": 100.0, "inductor": 250.0}, "least_us": {"ours": 99.0},
    "host_us": 20.0, "errors": {"ours": 1e-3, "eager": 2e-3, "inductor": 9e-4},
    "profile": {"ours": PROFILE, "inductor": PROFILE},
}  # fmt: skip
ABOUT = {"device": "a GPU", "target": "cuda:sm_90a", "torch": "2", "transformers": "5"}


def test_weights_are_the_same_bits_again_and_have_their_roles():
    matrix = weights.draw("layer.query.weight", (48, 300), 0)
    assert matrix.dtype == np.float16
    assert matrix.tobytes() == weights.draw("layer.query.weight", (48, 300), 0).tobytes()
    for other in (("layer.key.weight", 0), ("layer.query.weight", 1)):
        assert matrix.tobytes() != weights.draw(other[0], (48, 300), other[1]).tobytes()
    assert math.isclose(matrix.std(dtype="float64"), 300**-0.5, rel_tol=0.02)
    assert math.isclose(weights.draw("h.0.c_fc.weight", (300, 48), 0).std(), 300**-0.5, rel_tol=0.1)
    norm = weights.draw("norm.weight", (500,), 0)
    assert abs(norm.mean() - 1) < 0.02
    assert 0.05 < norm.std() < 0.2
    assert abs(weights.draw("norm.bias", (500,), 0).mean()) < 0.02


def artifact(folder, arrays):
    """An artifact with weights and without kernels."""
    from tvm_fusion.deploy.runtime.artifact import weights_file

    folder.mkdir()
    (folder / manifest.LIBRARY).write_bytes(b"")
    places = weights_file.write(folder / manifest.WEIGHTS, arrays)
    files = {
        name: {"bytes": (folder / name).stat().st_size, "sha256": manifest.sha256(folder / name)}
        for name in (manifest.LIBRARY, manifest.WEIGHTS)
    }
    counts = {"kernels": 1, "calls": 1, "intermediate_bytes": 0}
    main = {"inputs": [], "outputs": [], "weights": list(places), **counts}
    content = {
        "schema": manifest.SCHEMA, "versions": {"apache-tvm": "0"}, "source": "a model",
        "target": {"text": "cuda:sm_90a", "kind": "cuda", "archs": ["sm_90a"]},
        "precision": "fp16", "dims": {}, "suffix": "", "functions": {"main": main},
        "weights": places, "architectures": {}, "stored_kernels": [], "decisions": [],
        "files": files,
    }  # fmt: skip
    manifest.write(folder, content)
    return (folder / manifest.WEIGHTS).read_bytes()


def parameters():
    shapes = {
        "q": (96, 128),
        "k": (64, 128),
        "v": (64, 128),
        "table": (100, 96),
        "conv": (64, 3, 9, 9),
        "window": (32, 48, 3, 3),
    }
    return {name: weights.draw(name, shape, 3) for name, shape in shapes.items()}


def test_weights_come_back_bit_by_bit(tmp_path):
    own = parameters()
    joined = np.concatenate([own["v"].T, own["q"].T, own["k"].T], 1)
    arrays = {
        "concat(permute_dims(v))": joined,
        "stacked": np.concatenate([own["k"], own["v"]], 0),
        "permute_dims(q)": np.ascontiguousarray(own["q"].T),
        "table": own["table"],
        "conv": own["conv"],
        "packed": np.ascontiguousarray(own["window"].transpose(0, 2, 3, 1)),
        "constant#2": np.arange(4096, dtype=np.int64).reshape(64, 64),
        "mask": np.tri(7, dtype=bool),
    }
    folder = tmp_path / "model"
    before = artifact(folder, arrays)
    weights.drop(folder, own)
    assert not (folder / manifest.WEIGHTS).exists()
    assert sum(path.stat().st_size for path in folder.iterdir()) < len(before) / 4
    weights.restore(folder, own)
    assert (folder / manifest.WEIGHTS).read_bytes() == before
    wrong = {**own, "q": own["q"] + np.float16(1)}
    with pytest.raises(UserError, match="has been changed"):
        weights.restore(folder, wrong)


def test_large_weights_of_another_origin_do_not_travel(tmp_path, monkeypatch):
    monkeypatch.setattr(weights, "LARGEST", 1 << 15)
    own = parameters()
    artifact(tmp_path / "model", {"scaled": own["q"] * np.float16(2), "other": np.ones((200, 200))})
    with pytest.raises(ValueError, match=r"other of .* is not made of parameters"):
        weights.drop(tmp_path / "model", own)


def test_page(tmp_path, monkeypatch):
    monkeypatch.setattr(table, "HERE", tmp_path)
    monkeypatch.setattr(table, "RESULT", tmp_path / "results" / "gpu_models.json")
    rows = [ROW, {**ROW, "name": "gpt2_batch_1", "us": {"ours": 100.0, "inductor": 40.0}}]
    rows += [{**ROW, "name": "vit_batch_8", "wrong": "an error of 7"}]
    table.keep({"about": {**ABOUT, "failed": {"t5": "no template"}}, "rows": rows})
    page = (tmp_path / "README.md").read_text()
    assert "| bert_batch_1 | 3 | 100.0 | 250.0 | 2.50 | 20.0 | 1.0e-03 | 2.0e-03 |" in page
    assert "Batch 1: PyTorch / ours 1.00 (geometric mean of 2)." in page
    assert "* vit_batch_8: an error of 7" in page
    assert "* t5: no template" in page
    kept = json.loads((tmp_path / "results" / "gpu_models.json").read_text())
    assert "profile" not in kept["rows"][0]


@pytest.mark.torch
def test_time_that_kernels_cover():
    profile = pytest.importorskip("benchmarks.gpu_models.profile")
    assert profile._covered([(0.0, 3.0), (2.0, 2.5), (2.9, 4.0), (6.0, 7.0)]) == 5.0


@pytest.mark.torch
def test_a_model_from_its_configuration_to_its_times(tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from benchmarks.gpu_models import build, models, worker

    def tiny():
        config = transformers.BertConfig(
            vocab_size=50, hidden_size=64, num_hidden_layers=1, num_attention_heads=2,
            intermediate_size=96, max_position_embeddings=32,
        )  # fmt: skip
        return transformers.BertModel(config, add_pooling_layer=False)

    def inputs(batch):
        return {"input_ids": torch.randint(50, (batch, 12))}

    model = models.Model("tiny", 2, tiny, inputs, "last_hidden_state")
    compiled = build.compile_model(model, tmp_path / "tiny", "cpu")
    assert compiled["kernels"] > 5
    assert not (tmp_path / "tiny" / manifest.WEIGHTS).exists()
    sides, row = worker.prepare(model, tmp_path / "tiny", "cpu", rival=False)
    assert row["wrong"] is None
    assert 0 < row["errors"]["ours"] < 5e-3
    assert 0 < row["errors"]["eager"] < 5e-3
    times = worker.timed(sides)
    assert times["least_us"]["ours"] <= times["us"]["ours"]
    assert times["host_us"] > 0


@pytest.mark.torch
def test_models_have_names_of_their_own():
    models = pytest.importorskip("benchmarks.gpu_models.models")
    assert len(models.MODELS) == 22
    assert all(name == model.name for name, model in models.MODELS.items())
    assert {model.batch for model in models.MODELS.values()} == {1, 8}


def test_models_of_images_meet_the_faster_of_both_layouts(tmp_path, monkeypatch):
    monkeypatch.setattr(table, "HERE", tmp_path)
    monkeypatch.setattr(table, "RESULT", tmp_path / "results" / "gpu_models.json")
    us = {"ours": 100.0, "inductor": 150.0, "inductor_nhwc": 120.0}
    table.keep({"about": {**ABOUT, "failed": {}}, "rows": [{**ROW, "us": us}]})
    page = (tmp_path / "README.md").read_text()
    assert "| 100.0 | 120.0 | 1.20 |" in page
