"""Every tutorial runs as a program; one runs as the notebook that jupytext makes of it, too."""

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


def marked(script):
    """Processes of tests do without PyTorch, unless they have its mark."""
    marks = [pytest.mark.torch] if "import torch" in script.read_text() else []
    return pytest.param(script, id=script.stem, marks=marks)


scripts = pytest.mark.parametrize("script", [*map(marked, sorted(TUTORIALS.glob("*.py")))])


def test_there_are_tutorials():
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
    seconds = run(tmp_path, str(script))
    assert not list(tmp_path.iterdir())
    assert seconds < IMPORTS * yardstick


@scripts
def test_is_a_notebook(script):
    notebook = jupytext.read(script)
    nbformat.validate(notebook)
    kinds = {cell.cell_type for cell in notebook.cells}
    assert kinds == {"code", "markdown"}


@pytest.mark.slow
def test_executes_as_a_notebook():
    script = TUTORIALS / "02_classes_and_planner.py"
    notebook = jupytext.read(script)
    place = {"metadata": {"path": str(TUTORIALS)}}
    NotebookClient(notebook, timeout=6000, kernel_name="python3", resources=place).execute()
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
