"""Commands on programs of ``torch.export.save``."""

import json
import subprocess
import sys

import pytest

from tvm_fusion.cli import main

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("plain_llvm")]
torch = pytest.importorskip("torch")


class Model(torch.nn.Module):
    """A counter that is changed, a nested argument, a result that is None."""

    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 3)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x, scales):
        self.calls.add_(1)
        return {"y": self.fc(x).relu() * scales[0], "none": None}


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    path = tmp_path_factory.mktemp("program") / "model.pt2"
    arguments = (torch.randn(2, 4), [torch.randn(3)])
    n = torch.export.Dim("n", min=1, max=8)
    exported = torch.export.export(Model(), arguments, dynamic_shapes=({0: n}, [None]))
    torch.export.save(exported, path)
    return path


def run(capsys, *words):
    code = main([*map(str, words), "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_compile_check_explain_bisect(program, tmp_path, capsys):
    code, compiled = run(capsys, "compile", program, "-o", tmp_path / "a")
    assert code == 0
    assert compiled["explain"] == f"tvm-fusion explain {program}"
    code, checked = run(capsys, "check", tmp_path / "a", program, "--dim", "x_0=3")
    assert (code, checked["reference"]) == (0, "PyTorch")
    assert set(checked["outputs"]) == {"y", "calls"}
    assert checked["max_rel_error"] < 1e-5
    code, explained = run(capsys, "explain", program, "--no-stock")
    assert code == 0
    assert explained["groups"]
    code, found = run(capsys, "bisect", program, "--dim", "x_0=2")
    assert (code, found["passed"]) == (0, True)


def test_the_page_of_a_program(program, tmp_path, capsys):
    code, _ = run(capsys, "explain", program, "--no-stock", "--html", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert code == 0
    assert page.startswith("<!doctype html>")
    assert "relu" in page


def test_a_program_where_an_artifact_is_expected(program, capsys):
    for command in (["inspect", program], ["bundle", program, "-o", "b"]):
        code, found = run(capsys, *command)
        assert code == 2
        assert f"compile it first, by `tvm-fusion compile {program} -o " in found["error"]


def test_the_command_line_imports_pytorch_for_a_program(program, tmp_path):
    words = ["compile", program, "-o", tmp_path / "a", "--cache", tmp_path / "cache"]
    command = [sys.executable, "-m", "tvm_fusion.cli", *map(str, words)]
    first = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert "from the cache" not in first
    assert "from the cache" in subprocess.run(command, check=True, stdout=-1, text=True).stdout


def test_run_profile_and_check_compile_a_program(program, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("TVM_FUSION_CACHE", str(tmp_path))
    code, ran = run(capsys, "run", program, "--dim", "x_0=3", "--repeat", 1)
    assert (code, ran["outputs"]["y"]["shape"]) == (0, [3, 3])
    code, profiled = run(capsys, "profile", program, "--dim", "x_0=3", "--repeat", 1)
    assert (code, profiled["source"]) == (0, program.name)
    code, checked = run(capsys, "check", program, "--dim", "x_0=3")
    assert (code, checked["reference"]) == (0, "PyTorch")
    artifacts = [path for path in tmp_path.iterdir() if not path.name.startswith(".")]
    assert len(artifacts) == 1


def test_what_is_no_program(tmp_path, capsys):
    torch.save({"weight": torch.zeros(2)}, tmp_path / "state.pt")
    for name, words in (
        ("state.pt", "state.pt is not an exported program ("),
        ("missing.pt2", "missing.pt2 does not exist; expected a .pt2 file of torch.export.save"),
    ):
        code, found = run(capsys, "compile", tmp_path / name, "-o", tmp_path / "a")
        assert code == 2
        assert words in found["error"]
