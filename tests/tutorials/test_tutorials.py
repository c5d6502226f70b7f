"""Every tutorial runs as a program, and a notebook holds the same cells; one of them runs, too.

The script is the source. After a change to it, ``jupytext --update --to ipynb tutorials/NAME.py``
brings the notebook up to date.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import jupytext
import nbformat
import pytest
from nbclient import NotebookClient

TUTORIALS = Path(__file__).parents[2] / "tutorials"
IMPORTS = 150  # of TVM take more of a processor than any tutorial: a minute and more

scripts = pytest.mark.parametrize("script", sorted(TUTORIALS.glob("*.py")), ids=lambda p: p.stem)


def test_there_are_tutorials():
    assert {path.stem for path in TUTORIALS.glob("*.ipynb")} == {
        path.stem for path in TUTORIALS.glob("*.py")
    }
    assert (TUTORIALS / "01_first_model.py").is_file()


def run(folder, *arguments):
    """Run Python in a folder; returns the seconds of a processor that it took."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "TVM_NUM_THREADS": "1"},  # threads that wait for work spin
        capture_output=True,
        text=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.fixture(scope="module")
def yardstick():
    """What an import of TVM takes on this machine, which may be a slow one and a busy one."""
    return run(TUTORIALS, "-c", "import tvm")


@pytest.mark.slow
@scripts
def test_runs_as_a_program_from_anywhere(script, tmp_path, yardstick):
    if "import torch" in script.read_text():
        pytest.importorskip("torch")
    seconds = run(tmp_path, str(script))
    assert not list(tmp_path.iterdir())
    assert seconds < IMPORTS * yardstick


@scripts
def test_notebook_has_the_cells_of_the_script(script):
    notebook = nbformat.read(script.with_suffix(".ipynb"), as_version=4)
    assert cells(notebook) == cells(jupytext.read(script))


@scripts
def test_notebook_is_kept_without_outputs(script):
    notebook = nbformat.read(script.with_suffix(".ipynb"), as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert code
    assert not any(cell.outputs or cell.execution_count for cell in code)


@pytest.mark.slow
def test_executes_as_a_notebook():
    script = TUTORIALS / "02_classes_and_planner.py"
    notebook = nbformat.read(script.with_suffix(".ipynb"), as_version=4)
    place = {"metadata": {"path": str(TUTORIALS)}}
    NotebookClient(notebook, timeout=6000, kernel_name="python3", resources=place).execute()
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))


def cells(notebook: nbformat.NotebookNode) -> list[tuple[str, str]]:
    """List the type and the text of every cell."""
    return [(cell.cell_type, cell.source) for cell in notebook.cells]
