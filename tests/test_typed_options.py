"""A type checker finds a user's mistakes: what the package says of its types is complete."""

import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tvm_fusion.config import FusionConfig, Options

MISTAKES = """
import tvm_fusion

artifact = tvm_fusion.compile("model.onnx", precison="fp16")
tvm_fusion.compile("model.onnx", precision="fp8")
tvm_fusion.compile("model.onnx", config={"dimensions": {}})
tvm_fusion.compile("model.onnx", "cuda", {"precision": "fp16"}, fast_math=True, dims={"n": 4})
reveal_type(tvm_fusion.load(artifact))
"""


def test_options_are_the_fields_of_the_config():
    assert list(Options.__annotations__) == list(FusionConfig.__dataclass_fields__)


@pytest.mark.slow
def test_misspelt_options_of_a_file_outside(tmp_path):
    pytest.importorskip("mypy")
    # An environment with the package as `./dev setup` installs it: a path in site-packages.
    venv.create(tmp_path / "env", with_pip=False, symlinks=True)
    (packages,) = (tmp_path / "env/lib").glob("python*/site-packages")
    (packages / "tvm_fusion.pth").write_text(f"{Path(__file__).parents[1]}\n")
    (tmp_path / "user.py").write_text(MISTAKES)
    python = tmp_path / "env/bin/python"
    command = [sys.executable, "-m", "mypy", "--python-executable", str(python), "user.py"]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True).stdout
    lines = [line.partition(": ")[0] for line in found.splitlines() if ": error: " in line]
    assert sorted(set(lines)) == ["user.py:4", "user.py:5", "user.py:6"], found
    assert 'did you mean "precision"?' in found
    assert 'Revealed type is "tvm_fusion.deploy.runtime.executable.Executable"' in found
