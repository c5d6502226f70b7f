"""Prices against times: groups are found once, alternatives agree, the page tells losses."""

import json
import time

import numpy as np
import onnx.parser
import pytest
from tvm.ir.transform import Sequential

from benchmarks.prices import build, results, run, table
from benchmarks.prices.alternatives import FUSED, PARTS, alternatives_of, planned_groups
from tvm_fusion.config import FusionConfig
from tvm_fusion.device import parse
from tvm_fusion.frontend import import_model
from tvm_fusion.pipeline import stages

TEXT = """<ir_version: 8, opset_import: ["": 17]>
mlp (float[64, 96] x, float[96, 96] w) => (float[64, 96] z) {
    s = Sigmoid(x) h = MatMul(s, w) a = Relu(h) b = MatMul(a, w) z = Relu(b)
}"""


def model():
    weight = np.random.default_rng(0).standard_normal((96, 96), np.float32)
    proto = onnx.parser.parse_model(TEXT)
    del proto.graph.input[1]
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    return proto


@pytest.fixture
def groups():
    target = parse("cuda:sm_90a").tvm_target()
    with target:
        mod = Sequential(stages(FusionConfig())[:-1])(import_model(model()).mod)
        return list(planned_groups(mod, target)), target


def test_equal_groups_are_one_and_alternatives_have_all_operators(groups):
    found, target = groups
    assert sum(group.calls for group in found) >= len(found)
    assert len({group.key for group in found}) == len(found)
    for group in found:
        ways = alternatives_of(group.claim, target=target)
        assert next(iter(ways)) == FUSED
        members = set(group.claim.group.members)
        for steps in ways.values():
            assert [op for step in steps for op in step.group.members] == sorted(
                (op for step in steps for op in step.group.members), key=lambda op: op.index
            )
            assert {op for step in steps for op in step.group.members} == members
        if len(members) > 1:
            assert all(len(step.group.members) == 1 for step in ways[PARTS])


@pytest.mark.slow
def test_a_folder_is_compiled_measured_and_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(build, "imported", lambda name, spec: import_model(model()))
    index = build.build(tmp_path, "cpu", ["mlp"], 1, lambda line: None)
    assert not index["failed"]
    again = build.plan("another", "cpu", tmp_path)
    assert again["calls"] == index["models"]["mlp"]
    assert not again["groups"]
    record = run.measure(tmp_path, tmp_path / "prices.json")
    assert record["rows"].keys() == index["groups"].keys()
    for row in record["rows"].values():
        assert row["us"][FUSED] > 0
        assert not row["wrong"]
    before = {key: group["prices"] for key, group in index["groups"].items()}
    build.price_again(tmp_path, lambda line: None)
    after = json.loads((tmp_path / build.INDEX).read_text())["groups"]
    assert {key: group["prices"] for key, group in after.items()} == before
    monkeypatch.setattr(results, "RESULT", tmp_path / "results" / "record.json")
    results.take(tmp_path, tmp_path / "prices.json")
    kept = results.load()
    assert len(kept["cpu"]["rows"]) == len(before)
    for row in kept["cpu"]["rows"]:
        row["price"] = results.price(row, "cpu")
    assert "| mlp |" in table.render(kept)


def test_planning_ends_in_time_and_keeps_its_groups(tmp_path, monkeypatch):
    def slow(name, spec):
        time.sleep(60)

    monkeypatch.setattr(build, "imported", slow)
    (tmp_path / build.GROUPS).mkdir()
    found = build.plan("mlp", "cpu", tmp_path, end=time.monotonic() + 0.01)
    assert found["failed"] == ["mlp: build.py: TimeoutError: no time was left to plan it"]
    assert found["seconds"] < 30


def row(key, price, us, wrong=(), **more):
    times = {"fused": us, "parts": 10.0}
    return {
        "key": key, "title": key, "template": "rows", "form": "", "kernel": "", "source": "fitted",
        "price": price, "roofline": 2 * price, "us": times,
        "wrong": dict.fromkeys(wrong, "differ"), "calls": {"m": 2}, **more,
    }  # fmt: skip


def test_the_page_counts_errors_and_regret():
    rows = [row("a" * 8, 8.0, 8.0), row("b" * 8, 5.0, 20.0), row("c" * 8, 1.0, 1.0)]
    page = table.render({"gpu": {"device": "some", "date": "today", "rows": rows}})
    assert "| all | 2 | 38 % | 50 % | 50 % |" in page
    worst = page.index("bbbbbbbb | rows")
    assert worst < page.index("aaaaaaaa | rows")
    assert "| m | 52.6 % | 58 | 38 | bbbbbbbb: 20.0, parts 10.0 |" in page


def test_what_gives_other_results_is_no_better_alternative():
    assert table.best(row("a", 1.0, 20.0)) == ("parts", 10.0)
    assert table.best(row("a", 1.0, 20.0, wrong=["parts"])) == ("fused", 20.0)


def test_each_group_is_of_one_half():
    halves = {results.half_of(f"{n:08x}") for n in range(2)}
    assert halves == {results.FIT, results.JUDGE}


def test_different_results_are_told():
    one, other = np.ones(4, "float32"), np.array([1, 1, 1, 2], "float32")
    assert run._told([one], [one], 1e-3) == ""
    assert "differ by 1 of 2" in run._told([one], [other], 1e-3)
