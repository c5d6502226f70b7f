"""Whole models with records: what a folder of candidates has found, and what the page says."""

import json

import pytest

from benchmarks.gpu_sweep.table import describe_any
from benchmarks.gpu_tuning import table

KEY = {"structure": "0", "versions": json.dumps({"template": "contraction"})}
TILE = {
    "kernel": "wgmma", "block_m": 128, "block_n": 128, "block_k": 64, "stages": 4, "split_k": 1,
    "group_m": 8, "consumers": 2, "is_ping_pong": 0, "blocks_per_sm": 1,
}  # fmt: skip
WIDE, SPLIT = {**TILE, "block_n": 256}, {**TILE, "split_k": 4}


def folder(path, tuned):
    task = {"key": KEY, "title": "matmul [8x8]", "calls": 12}
    task["candidates"] = [{"config": c, "file": "f"} for c in (TILE, WIDE, SPLIT)]
    path.mkdir(parents=True)
    (path / "candidates.json").write_text(json.dumps({"tasks": [task]}))
    trials = [[TILE, 10.0, 10.0, ""], [WIDE, 8.0, 10.0, ""], [SPLIT, None, None, "a crash"]]
    lines = [{"key": KEY, "trials": [trial], "tuned": None} for trial in trials]
    lines.append({"key": KEY, "trials": [], "tuned": tuned, "decided": True})
    (path / "records.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_page(tmp_path, monkeypatch):
    monkeypatch.setattr(table, "HERE", tmp_path)
    monkeypatch.setattr(table, "RESULT", tmp_path / "results" / "gpu_tuning.json")
    folder(tmp_path / "candidates" / "bert", [WIDE, 8.0, 10.0])
    folder(tmp_path / "candidates" / "resnet", [TILE, 10.0, 10.0])
    times = {"ours": 400.0, "records": 320.0}
    row = {"wrong": None, "us": times, "least_us": times, "errors": {}}
    rows = [{"name": "bert", **row}, {"name": "resnet", "wrong": "an error of 7"}]
    about = {"device": "a GPU", "target": "cuda:sm_90a"}
    table.keep({"about": about, "models": table.found({"rows": rows}, tmp_path)})
    page = (tmp_path / "README.md").read_text()
    assert "Default over records: 1.250 (geometric mean of 1;" in page
    assert "| bert | 400.0 | 320.0 | 1.250 | 1.250 | 1 | 1 | 2 | 1 | 1.250 |" in page
    assert "| resnet | wrong | wrong | wrong | wrong | 1 | 0 | 2 | 1 | 1.000 |" in page
    usual = "4 stages, 2 consumers"
    change = f"wgmma 128x128x64, {usual}, groups of 8 | 1.250 | wgmma 128x256x64, {usual}"
    assert f"| bert | matmul [8x8] | 12 | 10.00 | {change}" in page
    kept = json.loads((tmp_path / "results" / "gpu_tuning.json").read_text())
    assert kept["models"][1]["tasks"][0]["best_trial"] == [pytest.approx(1.25), describe_any(WIDE)]


def test_kernels_that_were_measured_since(tmp_path):
    folder(tmp_path / "vit", [WIDE, 8.0, 10.0])
    since = {"name": "vit", "us": {}, "least_us": {}, "tasks": table.tasks(tmp_path / "vit")}
    about = {"device": "a GPU", "target": "cuda:sm_90a"}
    later = {"remark": "Since then.", "models": [since]}
    page = table.render({"about": about, "models": [], "untimed": later})
    assert "Since then.\n\n| model | tasks |" in page
    assert "| vit | 1 | 1 | 2 | 1 | 1.250 |" in page
    assert "| vit | matmul [8x8] | 12 | 10.00 |" in page


def test_other_configurations_in_words():
    rows = {"kernel": "rows", "threads": 128, "rows": 2, "keep_packed": 0}
    assert describe_any(rows) == "kernel rows, threads 128, rows 2"
