"""Rooms import only those below them, nothing in circles: the contracts in pyproject.toml."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LINT = "from importlinter.cli import lint_imports; import sys; sys.exit(lint_imports())"


def check(folder: Path) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    command = [sys.executable, "-c", LINT]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def test_contracts_are_kept():
    done = check(ROOT)
    assert done.returncode == 0, done.stdout
    assert "4 kept, 0 broken" in done.stdout


@pytest.mark.slow
@pytest.mark.slow_beyond(2)
@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("fusion/plan.py", "from ..schedule import emit"),
        ("schedule/stage/emit.py", "from ...fusion import plan"),
        ("core/decisions.py", "from ..device import Device"),
        ("program/stage.py", "from . import compose"),
        ("tuning/search.py", "from ..schedule.contraction.gpu import space"),
        ("deploy/runtime/arguments.py", "import tvm"),
        ("deploy/runtime/tensors.py", "from ...ecg import graph"),
    ],
)
def test_a_wrong_import_is_found(tmp_path, module, line):
    copied = ROOT / "tvm_fusion"
    for path in copied.rglob("*.py"):
        copy = tmp_path / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(path.read_text())
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    planted = tmp_path / "tvm_fusion" / module
    planted.write_text(planted.read_text() + f"\n{line}\n")
    assert "1 broken" in check(tmp_path).stdout
