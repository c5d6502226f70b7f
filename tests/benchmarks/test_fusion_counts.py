"""The record of kernels and bytes, and the table generated from it."""

import copy
import json

import pytest

from benchmarks.fusion import __main__ as command_line
from benchmarks.fusion import counting, table
from benchmarks.fusion.figures import CPU, GPU, MODELS
from benchmarks.fusion.graphs import GRAPHS, SIZES


def facts(kernels: int, size: int) -> dict:
    return {"kernels": kernels, "calls": kernels, "intermediate_bytes": size}


def record() -> dict:
    """Counts that meet every floor, the stretches too."""
    stock, ours = facts(187, 10_000_000), facts(53, 2_000_000)
    one, two = facts(1, 0), facts(2, 4)
    return {
        "schema": table.SCHEMA,
        "environment": {
            "date": "2000-01-01",
            "commit": "0123456789abcdef",
            "dirty": False,
            "versions": {"apache-tvm": "0.0"},
        },
        "models": {
            name: {"stock": {GPU: stock, CPU: stock}, "ours": {GPU: ours, CPU: ours}}
            for name in MODELS
        },
        "graphs": {
            name: {
                size: {"stock": {GPU: two, CPU: two}, "ours": {GPU: one, CPU: one}}
                for size in SIZES
            }
            for name in GRAPHS
        },
    }


def test_committed_table_is_what_the_committed_counts_give():
    assert table.README.read_text() == table.render(table.load())


def test_committed_counts_are_complete():
    committed = table.load()
    assert list(committed["models"]) == list(MODELS)
    assert list(committed["graphs"]) == list(GRAPHS)
    sides = [side for counts in committed["models"].values() for side in counts.values()]
    for sizes in committed["graphs"].values():
        assert list(sizes) == list(SIZES)
        sides += [side for counts in sizes.values() for side in counts.values()]
    assert all("kernels" in side[target] for side in sides for target in (GPU, CPU))


def test_table_with_everything_met():
    page = table.render(record())
    assert "## Floors missed\n\nNone.\n" in page
    assert "**missed**" not in page
    assert "| bert_base | 187 | 53 | 88 | 63 | met, the stretch too |" in page
    assert "| mobilenet_v2 | 187 | 53 | 187 |  | met |" in page
    assert "| bert_base | cpu | 10.0 | 2.0 | 0.200 | 0.4 |  | met |" in page
    assert "| concat | 7x1000 | 2 | 1 | 2 | 1 | met |" in page
    assert "commit 0123456789ab; apache-tvm 0.0." in page


@pytest.mark.parametrize(
    ("change", "sentence", "row"),
    [
        (
            lambda r: r["models"]["gpt2"]["ours"].update({GPU: facts(90, 0)}),
            "gpt2: 90 launches; the floor is 89",
            "| gpt2 | 187 | 90 | 89 | 63 | **missed** |",
        ),
        (
            lambda r: r["models"]["unet2d"]["ours"].update({GPU: facts(187, 0)}),
            "unet2d: 187 launches; the floor is 186",
            "| unet2d | 187 | 187 | 186 |  | **missed** |",
        ),
        (
            lambda r: r["models"]["gpt2"]["ours"].update({CPU: facts(1, 5_000_000)}),
            "gpt2: intermediates on cpu 0.500 of stock TVM's; the floor is 0.4",
            "| gpt2 | cpu | 10.0 | 5.0 | 0.500 | 0.4 |  | **missed** |",
        ),
        (
            lambda r: r["graphs"]["concat"]["8x1024"]["ours"].update({CPU: facts(2, 0)}),
            "concat at 8x1024 on cpu: 2 kernels; the floor is 1",
            "| concat | 8x1024 | 2 | 1 | 2 | 2 | **missed** |",
        ),
        (
            lambda r: r["models"]["gpt2"]["ours"].update({GPU: {"not_counted": "KeyError: 'x'"}}),
            "gpt2: not counted",
            f"* gpt2, ours, {GPU}: not counted: KeyError: 'x'",
        ),
    ],
)
def test_what_is_missed_says_so(change, sentence, row):
    changed = copy.deepcopy(record())
    change(changed)
    assert sentence in list(table.misses(changed))
    page = table.render(changed)
    assert f"* {sentence}" in page
    assert row in page


def test_stretch_missed_is_told_apart_from_the_floor():
    changed = record()
    changed["models"]["gpt2"]["ours"] = {GPU: facts(64, 4_000_001), CPU: facts(64, 4_000_000)}
    assert not list(table.misses(changed))
    page = table.render(changed)
    assert "| gpt2 | 187 | 64 | 89 | 63 | met, the stretch missed |" in page
    assert f"| gpt2 | {GPU} | 10.0 | 4.0 | 0.400 | 1.0 | 0.4 | met, the stretch missed |" in page


@pytest.fixture
def quick(monkeypatch):
    """Counters that count nothing, and what they were asked."""
    asked = []

    def fake(side, kernels):
        def counter(what, target):
            asked.append((side, str(what), target))
            if (side, str(what)) == ("ours", "gpt2"):
                raise ValueError("no schedule\nfor this")
            return facts(kernels, kernels)

        counter.__name__ = side
        return counter

    for kind in ("model", "graph"):
        monkeypatch.setattr(counting, f"{kind}_stock", fake("stock", 2))
        monkeypatch.setattr(counting, f"{kind}_ours", fake("ours", 1))
    return asked


def run(tmp_path, *arguments):
    files = ["--json", str(tmp_path / "counts.json"), "--readme", str(tmp_path / "README.md")]
    return command_line.main([*files, *arguments])


def test_command_writes_record_and_table_and_keeps_stock(quick, tmp_path):
    assert run(tmp_path) == 0
    written = json.loads((tmp_path / "counts.json").read_text())
    assert (tmp_path / "README.md").read_text() == table.render(written)
    assert written["models"]["unet2d"]["stock"][GPU] == facts(2, 2)
    assert written["models"]["gpt2"]["ours"][CPU] == {"not_counted": "ValueError: for this"}

    quick.clear()
    assert run(tmp_path, "--models", "unet2d") == 0
    models = [(side, what) for side, what, _ in quick if what in MODELS]
    assert set(models) == {("ours", "unet2d")}
    again = json.loads((tmp_path / "counts.json").read_text())
    assert again["models"] == written["models"]

    quick.clear()
    assert run(tmp_path, "--models", "unet2d", "--stock") == 0
    assert ("stock", "unet2d", GPU) in quick


def test_table_alone_counts_nothing(quick, tmp_path):
    (tmp_path / "counts.json").write_text(json.dumps(record()))
    assert run(tmp_path, "--table") == 0
    assert (tmp_path / "README.md").read_text() == table.render(record())
    assert quick == []


@pytest.mark.parametrize(
    ("content", "arguments", "sentence"),
    [
        (None, ["--models", "lenet"], "unknown model lenet; expected one of bert_base,"),
        (None, ["--table"], "there is no file"),
        ({"schema": 0}, ["--table"], "counts.json has schema 0; expected 1; count again."),
    ],
)
def test_mistakes_are_one_sentence(quick, tmp_path, capsys, content, arguments, sentence):
    if content is not None:
        (tmp_path / "counts.json").write_text(json.dumps(content))
    assert run(tmp_path, *arguments) == 2
    printed = capsys.readouterr().err
    assert sentence in printed
    assert printed.count("\n") == 1
