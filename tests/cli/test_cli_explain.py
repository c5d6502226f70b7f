"""``explain`` and ``bisect`` on the command line."""

import json

import numpy as np
import pytest
from tiny_models import dense_data

COMMANDS = ("explain", "bisect")


def object_of(result, code=0):
    assert (result.code, result.err) == (code, "")
    return json.loads(result.out, parse_constant=pytest.fail)


def test_explain(cli, dense_file):
    found = object_of(cli("explain", dense_file, "--dim", "batch=4", "--json"))
    assert {
        "model", "target", "about", "kernels", "calls", "intermediate_bytes", "caveats",
        "stock_kernels", "stock_calls", "stock_intermediate_bytes", "stock_from", "assumed_dim",
        "groups", "refused", "views", "opaque", "fallbacks", "rewriting", "recomposed", "layouts",
        "tuned", "measured", "workers",
    } == set(found)  # fmt: skip
    assert 1 <= found["kernels"] <= found["stock_kernels"]
    assert found["intermediate_bytes"] <= found["stock_intermediate_bytes"]
    assert sum(len(group["members"]) for group in found["groups"]) == 3
    assert found["fallbacks"] == []


def test_explain_prints_tables(cli, dense_file):
    result = cli("explain", dense_file, "--dim", "batch=1..4", "--op", "relu")
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith("dense.onnx for cpu:")
    assert "relu is in:" in result.out
    assert "= relu (One-to-One)" in result.out


def test_explain_prints_the_forms_of_an_operator(cli, dense_file):
    arguments = ("explain", dense_file, "--dim", "batch=4", "--no-stock", "--target", "cuda:sm_90a")
    text = cli(*arguments, "--op", "matmul").out
    assert "Forms of " in text
    assert "as it is" in text
    assert "Forms of " not in cli(*arguments).out
    groups = object_of(cli(*arguments, "--op", "matmul", "--json"))["groups"]
    assert [f["name"] for g in groups for f in g["forms"] if f["is_chosen"]] == ["as it is"]


def test_explain_without_stock(cli, dense_file):
    found = object_of(cli("explain", dense_file, "--dim", "batch=4", "--no-stock", "--json"))
    assert found["stock_kernels"] is None
    assert "stock TVM" not in cli("explain", dense_file, "--dim", "batch=4", "--no-stock").out


def test_explain_what_was_rewritten(cli, dense_file):
    arguments = ("explain", dense_file, "--dim", "batch=4", "--no-stock", "--rewrites")
    found = object_of(cli(*arguments, "--allow", "reassociate", "--json"))["rewriting"]
    assert set(found) == {"changes", "rules", "unused"}
    assert "factor_multiply" not in found["unused"]
    off = object_of(cli(*arguments, "--without-rule", "factor_one", "--json"))["rewriting"]
    assert off["unused"]["factor_one"] == "switched off"
    text = cli(*arguments, "--rewrite", "none").out
    assert "Nothing was rewritten." in text
    assert "Groups" not in text


def test_explain_an_unknown_operator(cli, dense_file):
    result = cli("explain", dense_file, "--dim", "batch=4", "--op", "relux")
    assert "no operator is called 'relux'" in result.sentence
    assert "one of relu" in result.sentence


@pytest.mark.slow
def test_bisect(cli, dense_file, tmp_path):
    np.save(tmp_path / "data.npy", dense_data(3))
    data = f"data={tmp_path / 'data.npy'}"
    arguments = ("bisect", dense_file, "--dim", "batch=1..4", "--input", data)
    found = object_of(cli(*arguments, "--json"))
    assert set(found) == {
        "passed", "model", "target", "tolerance", "candidates", "probes", "reference_crash",
        "fused", "culprits", "cured", "slow", "times_us",
    }  # fmt: skip
    assert found["passed"] is True
    assert found["tolerance"] == 1e-4
    assert found["fused"]["outputs"]["scores"] <= 1e-4
    assert cli(*arguments).out.startswith("passed: fusion is not at fault")


@pytest.mark.slow
def test_bisect_for_time(cli, dense_file):
    arguments = ("bisect", dense_file, "--dim", "batch=4", "--slow", "--tolerance", "20")
    found = object_of(cli(*arguments, "--json"))
    assert found["tolerance"] == 20
    assert set(found["times_us"]) == {"unfused", "fused"}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "unbound dimensions batch"),
        (["--dim", "batch=1", "--target", "vax"], "unknown target 'vax'"),
        (["--dim", "length=3"], "names no dimension of the model"),
    ],
)
def test_mistakes(cli, dense_file, command, options, words):
    assert words in cli(command, dense_file, *options).sentence


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--tolerance", "-1"], "--tolerance -1"),
        (["--target", "rocm:gfx942"], "cannot be run on this machine"),
        (["--input", "data"], "--input 'data'"),
        (["--input", "date=x.npy"], "x.npy"),
    ],
)
def test_mistakes_of_bisect(cli, dense_file, options, words):
    assert words in cli("bisect", dense_file, "--dim", "batch=2", *options).sentence


def test_what_bisect_finds_is_printed(cli, dense_file, monkeypatch):
    from tvm_fusion.core.decisions import Decision
    from tvm_fusion.report import bisect
    from tvm_fusion.report.bisect import Bisection, Culprit, Outcome, Slowdown
    from tvm_fusion.report.bisect.result import FusedGroup
    from tvm_fusion.report.explain import Member

    first = Member("a", "relax.exp", "exp", "One-to-One", ("/block/Exp", "/block/Mul"))
    members = (first, Member("b", "f", "f", "Shuffle"))
    names = {"producer_names": ("/block/Exp",)}
    decisions = (Decision("a", "b", "accepted", "fused", "One kernel by t.", **names),)
    group = FusedGroup("exp + f", "t", members, 3, decisions)
    found = Bisection(
        "m", "cpu", 1e-4, 5, 9,
        fused=Outcome(error=float("inf"), outputs={"y": float("inf")}),
        culprits=(Culprit((group,), Outcome(crash="ended by SIGSEGV"), members[:1]),),
        cured=Outcome(error=1e-7, outputs={"y": 1e-7}),
        slow=(Slowdown(group, 12.0, 3.0),),
        times_us={"fused": 40.0},
    )  # fmt: skip
    monkeypatch.setattr(bisect, "find_broken", lambda *arguments: found)
    result = cli("bisect", dense_file, "--dim", "batch=2")
    assert (result.code, result.err) == (1, "")
    for words in (
        "broken: crashes (ended by SIGSEGV)",
        "3 x exp + f, by the template t",
        "a = relax.exp (One-to-One): /block/Exp, /block/Mul\n",
        "b = f (Shuffle)\n",
        "/block/Exp -> b: fused. One kernel by t.",
        "it is enough to fuse a (exp)",
        "slow: 12.0 us fused, 3.0 us unfused",
        "without them: error 1.00e-07 in y",
    ):
        assert words in result.out
    data = object_of(cli("bisect", dense_file, "--dim", "batch=2", "--json"), code=1)
    assert data["fused"]["error"] is None
    assert data["culprits"][0]["groups"][0]["instances"] == 3


def test_page_with_the_times_of_a_profile(cli, dense_file, dense_folder, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    page, times = tmp_path / "page.html", tmp_path / "times.json"
    profiled = cli("profile", dense_folder, "--repeat", 1, "--json", "--html", page)
    assert '"verdict"' not in page.read_text()  # an artifact has no graph
    times.write_text(profiled.out)
    model = (dense_file, "--dim", "batch=1..8", "--no-stock")
    result = cli("explain", *model, "--html", page, "--times", times)
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith(f"wrote {page} (")
    assert '"measured_us":null' not in page.read_text()


def test_a_page_that_cannot_be_written_is_refused_first(cli, dense_file, tmp_path):
    model = (dense_file, "--dim", "batch=4")
    assert "its folder" in cli("explain", *model, "--html", tmp_path / "no" / "page.html").sentence
    assert "--times" in cli("explain", *model, "--times", dense_file).sentence
    page = ("--html", tmp_path / "page.html")
    assert "is no JSON" in cli("explain", *model, *page, "--times", dense_file).sentence
