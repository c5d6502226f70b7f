"""The sanitizer's runner: what it makes of a tool's words, and what its page says."""

import pytest

from benchmarks.gpu_sanitizer import run, table

CLEAN = "========= COMPUTE-SANITIZER\nwork\n========= ERROR SUMMARY: 0 errors\n"
ERRORS = """========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at kernel+0x70
========= ERROR SUMMARY: 3 errors
"""
HAZARDS = "========= RACECHECK SUMMARY: 2 hazards displayed (2 errors, 0 warnings)\n"


@pytest.mark.parametrize(
    ("output", "code", "verdict"),
    [
        (CLEAN, 0, "clean"),
        (CLEAN, 1, "failed"),
        (ERRORS, 0, "3 errors"),
        (HAZARDS, 0, "2 hazards"),
        (HAZARDS.replace("2 hazards", "0 hazards"), 0, "clean"),
        ("Segmentation fault", 139, "failed"),
    ],
)
def test_verdicts(output, code, verdict):
    assert run.verdict_of(output, code) == verdict


def test_the_first_lines_of_a_report_are_kept():
    said = run.said(ERRORS)
    assert said == ["Invalid __global__ write of size 4 bytes", "at kernel+0x70"]
    assert run.said("no module\nlost") == ["no module", "lost"]


def found(verdict, *said):
    return {"verdict": verdict, "seconds": 1.0, "said": [*said]}


def test_page():
    tools = {"racecheck": found("2 hazards", "a hazard"), "memcheck": found("clean")}
    case = {"family": "rows", "config": "default", "failed": None, "tools": tools}
    lost = {"family": "scan", "config": None, "failed": "no nvcc", "tools": {}}
    about = {"device": "a GPU", "driver": "1", "target": "cuda:sm_90a", "sanitizer": "2"}
    planted = {"memcheck": found("3 errors")}
    record = {"about": about, "planted": planted, "cases": {"norm": case, "sum": lost}}
    page = table.render(record)
    assert "have to find: memcheck: 3 errors." in page
    assert "| rows | norm | default | clean | 2 hazards |" in page
    assert "## racecheck of norm: 2 hazards\n\n```\na hazard\n```" in page
    assert "* sum: no nvcc" in page


@pytest.mark.torch
def test_cases_have_names_of_their_own():
    pytest.importorskip("torch")
    from benchmarks.gpu_sanitizer.cases import CASES

    assert len({case.work.name for case in CASES}) == len(CASES) > 30
    assert len({case.family for case in CASES}) == len(CASES)


@pytest.mark.torch
@pytest.mark.cuda_toolchain
def test_a_case_has_the_configuration_of_its_family(tmp_path):
    pytest.importorskip("torch")
    import json

    from benchmarks.gpu_sanitizer.__main__ import main

    options = ["--out", str(tmp_path), "--only", "skinny_mma", "--processes", "1"]
    assert main(["build", *options]) == 0
    index = json.loads((tmp_path / "works.json").read_text())
    assert index["names"] == ["skinny_mma"]
    assert index["cases"]["skinny_mma"]["config"]["kernel"] == "skinny mma.sync"
    assert (tmp_path / "skinny_mma" / "model.so").is_file()
