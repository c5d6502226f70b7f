"""The C++ interface as a CMake package: the project that the documentation shows."""

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from tiny_models import classifier

import tvm_fusion

PAGE = Path(__file__).parents[3] / "docs/start/cpp.md"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (shutil.which("cmake") and shutil.which("g++")), reason="no C++ here"),
]


def run(*command, **options):
    return subprocess.run([*map(str, command)], capture_output=True, text=True, **options)


def test_the_project_of_the_page_calls_the_model(runner, tmp_path):
    """It is built against what a bundle has next to the model."""
    files = dict(re.findall(r"^```(cmake|cpp)\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.M))
    (tmp_path / "CMakeLists.txt").write_text(files["cmake"])
    (tmp_path / "classify.cc").write_text(files["cpp"])
    build = tmp_path / "build"
    made = run("cmake", "-S", tmp_path, "-B", build, f"-DCMAKE_PREFIX_PATH={runner.parent}")
    assert made.returncode == 0, made.stderr
    assert run("cmake", "--build", build).returncode == 0

    folder = tvm_fusion.compile(classifier(), dims={"batch": 1}).export(tmp_path / "model")
    scores = tvm_fusion.load(folder)(image=np.full((1, 3, 224, 224), 0.5, "float32"))["scores"]
    said = run(build / "classify", folder, env={})
    assert said.returncode == 0, said.stderr
    best = scores.argmax()
    found = re.fullmatch(r"class (\d+), score (-?[\d.]+)\n", said.stdout)
    assert int(found[1]) == best
    assert float(found[2]) == pytest.approx(scores[0, best], abs=1e-3)

    refused = run(build / "classify", tmp_path / "none")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "none" in refused.stderr
