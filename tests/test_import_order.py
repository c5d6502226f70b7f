"""What imports what: the contracts in pyproject.toml, and packages that only an extra brings."""

import ast
import importlib.metadata
import os
import re
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


def imported(path: Path) -> set[str]:
    """The packages that a file of Python imports by absolute names."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.add(str(node.module))
    return {name.partition(".")[0] for name in names} - sys.stdlib_module_names - {"tvm_fusion"}


def test_the_type_checker_expects_what_only_extras_bring():
    """Lint has the extras `test` and `dev` alone, so that what others bring is missing there."""
    settings = (ROOT / "pyproject.toml").read_text()
    (overrides,) = re.findall(r"^module = (\[.*\])$", settings, re.MULTILINE)
    expected = {name.partition(".")[0] for name in ast.literal_eval(overrides)}
    (required,) = re.findall(r"^dependencies = \[$(.*?)^\]$", settings, re.MULTILINE | re.DOTALL)
    always = {re.split("[=>]", name)[0] for name in re.findall('"(.*?)"', required)}
    always |= {"protobuf", "typing_extensions"}  # required by onnx and by apache-tvm-ffi
    distributions = importlib.metadata.packages_distributions()
    for path in (ROOT / "tvm_fusion").rglob("*.py"):
        for package in imported(path) - expected:
            assert always & set(distributions.get(package, [])), f"{path} imports {package}"


@pytest.mark.slow
@pytest.mark.slow_beyond(2)
@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("fusion/planning/plan.py", "from ...schedule import emit"),
        ("schedule/stage/emit.py", "from ...fusion import plan"),
        ("core/decisions.py", "from ..device import Device"),
        ("program/stage.py", "from .stages import compose"),
        ("tuning/search/bayesian.py", "from ...schedule.contraction.gpu import space"),
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
