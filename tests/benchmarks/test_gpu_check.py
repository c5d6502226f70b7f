"""The check on a GPU: recipes, expected results, collection, compiled on the CPU end to end."""

import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tvm
from relax_modules import main_module
from tvm import relax

from benchmarks.fusion import cells
from benchmarks.gpu_check import __main__ as command
from benchmarks.gpu_check import archive, drawing, expected, graphs, groups, run, sources
from benchmarks.gpu_check.batches import Batches
from benchmarks.gpu_check.entry import Entry, LeftOut, relative
from benchmarks.gpu_check.merge import merged
from tvm_fusion.device import parse
from tvm_fusion.ecg.mapping_types.table import TABLE, Relation
from tvm_fusion.errors import UserError

pytestmark = pytest.mark.slow_beyond(2)

ROOT = Path(__file__).parents[2]


# Arguments


def test_arguments_are_drawn_alike_and_by_position():
    spec = drawing.tensor((3, 5), "float32", drawing.NORMAL)
    one, two, number = drawing.draw([spec, spec, 7], seed=3)
    again = drawing.draw([spec, spec, 7], seed=3)
    assert number == 7
    assert np.array_equal(one, again[0])
    assert not np.array_equal(one, two)
    assert drawing.checksum([one, two, 7]) == drawing.checksum(again)
    again[1][2, 4] += 1
    assert drawing.checksum([one, two, 7]) != drawing.checksum(again)
    assert drawing.checksum([one, two, 7]) != drawing.checksum([one, two, 8])


@pytest.mark.parametrize(
    ("recipe", "dtype", "low", "high"),
    [
        ({"kind": "uniform", "low": 0.5, "high": 2.0}, "float16", 0.5, 2.0),
        ({"kind": "integers", "low": -3, "high": 4}, "int64", -3, 3),
        ({"kind": "choice", "values": [-1e38, 0.0]}, "float32", -1.1e38, 0),
        ({"kind": "bool"}, "bool", 0, 1),
    ],
)
def test_recipes_keep_to_their_ranges(recipe, dtype, low, high):
    (array,) = drawing.draw([drawing.tensor((50, 7), dtype, recipe)], seed=0)
    assert (str(array.dtype), array.shape) == (dtype, (50, 7))
    assert low <= array.min() < array.max() <= high


def test_normal_recipe_and_unknown_ones():
    recipe = {"kind": "normal", "mean": 3.0, "deviation": 0.1}
    (array,) = drawing.draw([drawing.tensor((1000,), "float32", recipe)], seed=0)
    assert abs(array.mean() - 3) < 0.02
    assert 0.08 < array.std() < 0.12
    with pytest.raises(ValueError, match="unknown recipe 'zipf'"):
        drawing.draw([drawing.tensor((1,), "float32", {"kind": "zipf"})], seed=0)


# Expected results


@pytest.mark.parametrize("size", [1, 4096, 4097, 30_000, 131_072])
def test_positions_are_distinct_and_within(size):
    chosen = expected.positions(size)
    assert len(set(chosen.tolist())) == len(chosen) == min(size, expected.SAMPLES)
    assert 0 <= chosen.min() <= chosen.max() < size
    if size > expected.SAMPLES:  # no gap of more than a few times the mean one
        assert np.diff(np.sort(chosen)).max() <= 4 * size / expected.SAMPLES


def large():
    return np.random.default_rng(0).standard_normal((100, 333))


def test_results_within_the_tolerance_pass():
    exact = large()
    wanted = expected.store(exact, "float32", 1e-4)
    actual = (exact + 0.9e-4).astype("float32")
    problem, units = expected.compare(actual, wanted)
    assert problem is None
    assert 0.8 < units < 1


def unlooked(wanted):
    chosen = set(expected.positions(int(np.prod(wanted["shape"]))).tolist())
    return next(i for i in range(10_000) if i not in chosen)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda a, w: a.astype("float64"), "float64(100, 333) instead of float32"),
        (lambda a, w: a[:-1], "instead of float32(100, 333)"),
        (lambda a, w: a.reshape(-1)[::-1].reshape(a.shape), "elements looked at"),
        (lambda a, w: np.where(np.arange(a.size).reshape(a.shape) == 0, 9, a), "at [0, 0] 9"),
        (lambda a, w: np.where(a == a.reshape(-1)[unlooked(w)], np.nan, a), "finite elements"),
        (lambda a, w: np.where(a == a.reshape(-1)[unlooked(w)], -80, a), "over all elements"),
    ],
)
def test_wrong_results_are_told(spoil, message):
    exact = large()
    wanted = expected.store(exact, "float32", 1e-5)
    actual = exact.astype("float32")
    spoilt = spoil(actual, wanted)
    dtype = "float64" if spoilt.dtype == "float64" and "float64" in message else "float32"
    problem, _ = expected.compare(spoilt.astype(dtype), wanted)
    assert problem is not None
    assert message in problem


def test_integers_must_be_exact_and_infinities_alike():
    wanted = relative([np.arange(12).reshape(3, 4)], ["int64"], 1e-2)[0]
    assert expected.compare(np.arange(12).reshape(3, 4), wanted)[0] is None
    assert expected.compare(np.arange(12).reshape(3, 4) + np.eye(3, 4, dtype=int), wanted)[0]
    wanted = expected.store(np.array([1.0, -np.inf, 2.0]), "float32", 1e-3)
    assert expected.compare(np.array([1, -np.inf, 2], "float32"), wanted)[0] is None
    assert expected.compare(np.array([1, np.inf, 2], "float32"), wanted)[1] == math.inf


def test_masked_elements_do_not_hide_the_others():
    mask = np.float64(np.float32(-3.4e38))
    (wanted,) = relative([np.array([mask, 1.0, 2.0])], ["float32"], 1e-3)
    assert expected.compare(np.array([-3.4e38, 1.001, 2], "float32"), wanted)[0] is None
    assert expected.compare(np.array([-3.4e38, 1.5, 2], "float32"), wanted)[0] is not None


def test_each_element_may_have_a_tolerance():
    wanted = expected.store(np.array([1.0, 1.0]), "float32", np.array([1e-6, 1e-1]))
    assert expected.compare(np.array([1, 1.05], "float32"), wanted)[0] is None
    assert expected.compare(np.array([1.05, 1], "float32"), wanted)[0] is not None


def test_the_folder_gives_back_what_was_written(tmp_path):
    folder = tmp_path / "made"
    archive.prepare(folder)
    content = {"entries": [{"x": np.arange(3), "y": [1, {"z": np.float32([2.5])}]}], "n": None}
    archive.write(folder, content)
    found = archive.read(folder)
    assert found["n"] is None
    assert found["entries"][0]["x"].tolist() == [0, 1, 2]
    assert found["entries"][0]["y"][1]["z"].dtype == "float32"
    archive.prepare(folder)
    assert [path.name for path in folder.iterdir()] == [archive.INDEX]


def test_a_folder_with_other_files_stays(tmp_path, capsys):
    (tmp_path / "thesis.txt").write_text("dear")
    with pytest.raises(UserError, match=r"holds other files; expected a new folder"):
        archive.prepare(tmp_path)
    assert command.main(["build", "--out", str(tmp_path)]) == 2
    assert "holds other files" in capsys.readouterr().err
    assert (tmp_path / "thesis.txt").read_text() == "dear"


# Collection


def test_every_cell_that_is_not_red_is_there():
    found = list(graphs.cases())
    names = [f"{kind} {case.name}" for kind, case in found]
    assert len(set(names)) == len(names)
    cell = {name.removeprefix("cell ") for name in names if name.startswith("cell ")}
    half = {name.removeprefix("half cell ") for name in names if name.startswith("half cell ")}
    allowed = [key for key, one in TABLE.items() if one.relation is not Relation.BREAK]
    assert len(allowed) == 23
    for first, second in allowed:
        pairs = ["-".join(pair) for pair in cells.PAIRS[first.value, second.value]]
        assert len(pairs) >= 3
        assert {*pairs, f"{pairs[0]}-symbolic"} <= cell
        assert pairs[0] in half
    assert sum(kind == "graph" for kind, _ in found) >= 30


def softmax_block(n):
    x = relax.Var("x", relax.TensorType((n, 9), "float32"))

    def result(emit, *_):
        value = emit(relax.op.exp(x))
        value = emit(relax.op.sqrt(value))
        return relax.op.nn.softmax(value, -1)

    return main_module([x], result)


def planned_groups(n):
    distinct = groups.Distinct("cpu")
    mod = sources.grouped(softmax_block(n), parse("cpu").tvm_target())
    found = list(distinct(mod))
    assert not list(distinct(mod))  # met before
    return found


def test_a_group_is_compared_with_its_members():
    (case,) = planned_groups(tvm.tirx.Var("n", "int64"))
    made = groups.entry("soft", "zoo group", case, "cpu", 0, {})
    assert isinstance(made, Entry), made
    assert made.arguments[0]["shape"] == [7, 9]
    assert len(made.about["members"]) == 3
    (x,) = drawing.draw(made.arguments, made.seed)
    e = np.exp(np.exp(x.astype("float64") / 2))
    assert expected.compare((e / e.sum(-1, keepdims=True)).astype("float32"), made.outputs[0]) == (
        None,
        pytest.approx(0, abs=0.1),
    )


def test_a_group_too_large_is_left_out_with_the_reason(monkeypatch):
    monkeypatch.setattr(groups, "ELEMENTS", 10)
    (case,) = planned_groups(4)
    lost = groups.entry("soft", "zoo group", case, "cpu", 0, {})
    assert (lost.stage, lost.reason) == ("limit", "72 elements; the limit is 10")


def test_a_group_that_fails_is_left_out_with_the_reason(monkeypatch):
    def fail(*_):
        raise RuntimeError("no kernel\nCheck failed: because")

    monkeypatch.setattr(groups.variants, "fused", fail)
    (case,) = planned_groups(4)
    lost = groups.entry("soft", "zoo group", case, "cpu", 0, {})
    assert (lost.stage, lost.reason) == ("plan", "RuntimeError: Check failed: because")


def test_templates_have_their_turns():
    (case,) = planned_groups(4)
    wide = [replace(case, calls=i) for i in range(4)]
    chosen = sources.spread(wide, 3)
    assert [one.calls for one in chosen] == [0, 1, 2]


# From collection to comparison


@pytest.fixture(scope="module")
def entries():
    generator = sources.fuzz_groups(1, groups.Distinct("cpu"), "cpu", 5)
    found = [
        graphs.entry("cell", cells.case("exp", "softmax"), "cpu", 0),
        graphs.entry("cell", cells.case("exp", "subtract", symbolic=True), "cpu", 0),
        next(generator),  # a whole graph in half precision
    ]
    assert not [one for one in found if isinstance(one, LeftOut)]
    return found


@pytest.mark.slow
def test_modules_side_by_side_share_equal_kernels(entries):
    mods = {"one": entries[0].mod, "two": entries[0].mod}
    both = merged(mods)
    names = {gvar.name_hint for gvar in both.functions}
    assert {"one", "two"} <= names
    kernels = len(entries[0].mod.functions) - 1
    assert len(names) == 2 + kernels  # equal ones once
    assert all(name.startswith(("one", "two")) for name in names)


@pytest.fixture(scope="module")
def built(entries, tmp_path_factory):
    """A folder with three functions, and one that cannot be compiled."""
    folder = tmp_path_factory.mktemp("built")
    never_lowered = softmax_block(3)
    bad = Entry("bad", "cell", never_lowered, [], 0, [], 1, "float64")
    batches = Batches(folder, "cpu")
    for one in (entries[0], bad, *entries[1:]):
        batches.add(one)
    batches.finish()
    content = {
        "about": {"target": "cpu"},
        "entries": [
            {"library": library, "function": function, **one.as_json()}
            for one, (library, function) in batches.placed.items()
        ],
        "left_out": [],
    }
    archive.write(folder, content)
    return folder, batches.failed


@pytest.mark.slow
def test_what_cannot_be_compiled_costs_nothing_else(built, entries):
    folder, failed = built
    assert [(lost.name, lost.stage) for lost in failed] == [("bad", "compile")]
    assert failed[0].reason
    assert len(archive.read(folder)["entries"]) == len(entries)


@pytest.mark.slow
def test_all_run_right_with_the_runtime_alone(built, tmp_path):
    folder, _ = built
    path = tmp_path / "result.json"
    command_line = [sys.executable, "-m", "benchmarks.gpu_check.run", str(folder)]
    done = subprocess.run(
        [*command_line, "--json", str(path)],
        cwd=ROOT,
        env={**os.environ, "TVM_USE_RUNTIME_LIB": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads(path.read_text())
    assert record["failures"] == 0
    assert {result["status"] for result in record["results"]} == {"right"}
    assert all(result["poisoned"] for result in record["results"] if result["kind"] == "cell")
    assert "cell: 2 of 2 right" in done.stdout


def spoilt(folder, change):
    content = archive.read(folder)
    change(content["entries"][0])
    return run.Runner(folder, "cpu").check(content["entries"][0])


@pytest.mark.slow
def test_a_wrong_result_is_told(built):
    def change(entry):
        entry["outputs"][0]["values"] = entry["outputs"][0]["values"] + np.float32(1)

    result = spoilt(built[0], change)
    assert result["status"] == "wrong"
    assert "output 0: " in result["reason"]


@pytest.mark.slow
def test_other_random_numbers_are_told(built):
    result = spoilt(built[0], lambda entry: entry.update(seed=entry["seed"] + 1))
    assert (result["status"], result["reason"]) == ("failed", "this numpy draws other numbers")


@pytest.mark.slow
def test_a_function_that_is_not_there_fails_alone(built):
    result = spoilt(built[0], lambda entry: entry.update(function="nowhere"))
    assert result["status"] == "failed"
    assert "nowhere" in result["reason"]


# For a GPU, without one


@pytest.mark.cuda_toolchain
def test_launches_are_counted_where_cuda_only_counts(tmp_path, monkeypatch):
    """Built for an H100 and run on a stand-in for CUDA, whose kernels compute nothing."""
    chosen = [cells.case("exp", "softmax"), cells.case("matmul", "matmul")]
    monkeypatch.setattr(graphs, "cases", lambda: (("cell", case) for case in chosen))
    folder = tmp_path / "made"
    assert command.main(["build", "--out", str(folder), "--sources", "graphs"]) == 0
    content = archive.read(folder)
    assert [entry["launches"] for entry in content["entries"]] == [1, 2]
    for entry in content["entries"]:
        code = (folder / entry["library"]).read_bytes()
        assert b"\x50\xed\x55\xba" in code  # a fat binary's first bytes
        assert b"__global__" not in code

    monkeypatch.syspath_prepend(str(ROOT / "tests/deploy/count"))
    from fake_cuda.build import build

    fake = tmp_path / "fake"
    fake.mkdir()
    build("cc", fake)
    path = tmp_path / "result.json"
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu_check.run", str(folder), "--json", str(path)],
        cwd=ROOT,
        env={**os.environ, "TVM_USE_RUNTIME_LIB": "1", "LD_LIBRARY_PATH": str(fake)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    for result in json.loads(path.read_text())["results"]:
        assert result["status"] == "wrong"
        assert result["launches"] == result["expected_launches"]
