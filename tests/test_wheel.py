"""A wheel built from the checkout: it holds what is no Python, and works on its own."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_a_wheel_compiles_runs_and_explains(dense_file, tmp_path):
    pytest.importorskip("setuptools", minversion="77")
    source, site = tmp_path / "source", tmp_path / "site"
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        source.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, source)
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "tvm_fusion", source / "tvm_fusion", ignore=ignored)
    options = ["--no-deps", "--no-build-isolation", "--disable-pip-version-check", "-q"]
    build = [sys.executable, "-m", "pip", "install", *options, "--target", str(site), str(source)]
    subprocess.run(build, check=True, cwd=tmp_path)

    def files(folder):
        found = (path for path in (folder / "tvm_fusion").rglob("*") if path.is_file())
        data = {path.relative_to(folder) for path in found if path.suffix not in (".py", ".pyc")}
        return {path for path in data if path.suffix != ".md"}  # read on GitHub

    assert files(site) == files(source)

    def run(*words):
        environment = {**os.environ, "PYTHONPATH": str(site)}
        line = [sys.executable, *map(str, words)]
        done = subprocess.run(line, check=True, cwd=tmp_path, env=environment, stdout=-1, text=True)
        return done.stdout

    def command(*words):
        run("-m", "tvm_fusion.cli", *words)

    assert run("-c", "import tvm_fusion; print(tvm_fusion.__file__)").startswith(str(site))
    command("compile", dense_file, "--dim", "batch=1..4", "-o", tmp_path / "artifact")
    command("run", tmp_path / "artifact", "--repeat", 1)
    command(
        "explain", dense_file, "--dim", "batch=1..4", "--html", tmp_path / "page.html", "--no-stock"
    )
    assert (tmp_path / "page.html").stat().st_size > 10_000
