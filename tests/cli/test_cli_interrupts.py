"""Ctrl-C at any moment: one line, exit code 130, nothing left behind."""

import os
import random
import subprocess
import sys
import time
from contextlib import suppress

import pytest

# Interrupts this process when a module is about to be imported, and goes on as the command line.
PROGRAM = """
import os, runpy, signal, sys

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)
            for _ in range(1000):
                pass

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Interrupts())
sys.orig_argv = [sys.executable, "-m", "tvm_fusion.cli", *sys.argv[1:]]
runpy.run_module("tvm_fusion.cli", run_name="__main__")
"""
LINE = "tvm-fusion: interrupted\n"


def interrupted_at(module, *arguments):
    program = PROGRAM.format(module=module)
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.parametrize(
    "module",
    [
        "tvm_fusion._tvm",
        "tvm_fusion.cli.dispatch",
        "numpy",
        "numpy._core.umath",
        "tvm_fusion.compiler",
        "tvm",
        "onnx",
        "tvm_fusion.schedule.templates",
    ],
)
@pytest.mark.slow
def test_an_interrupt_while_modules_are_imported(module, dense_file, tmp_path):
    folder = tmp_path / "out"
    done = interrupted_at(module, "compile", dense_file, "-o", folder, "--dim", "batch=1")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", LINE)
    assert not list(tmp_path.iterdir())


def test_an_interrupt_inside_a_pass_is_no_error_of_tvm(dense_file, tmp_path, monkeypatch):
    """Left to itself TVM makes a RuntimeError of it, which a guard would take for a fallback."""
    import tvm_fusion
    from tvm_fusion.schedule.contraction.cpu.templates.gemm import CpuContraction
    from tvm_fusion.schedule.elementwise.template import Elementwise

    def interrupt(*_arguments):
        raise KeyboardInterrupt

    for template in (Elementwise, CpuContraction):
        monkeypatch.setattr(template, "emit", interrupt)
    with pytest.raises(KeyboardInterrupt):
        tvm_fusion.compile(dense_file, dims={"batch": 1})


IN_FINALIZER = """
import os, signal, sys, time

class Object:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000):
            pass

def run(options):
    Object()
    time.sleep(60)

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.orig_argv = [sys.executable, "-m", "tvm_fusion.cli"]
from tvm_fusion.cli import main
from tvm_fusion.cli.commands import doctor
doctor.run = run
main(["doctor"])
"""


def test_an_interrupt_inside_a_finalizer_is_none_that_python_ignores():
    done = subprocess.run([sys.executable, "-c", IN_FINALIZER], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", LINE)


AT_EXIT = """
import atexit, os, pathlib, signal, sys

def clean_up():
    os.kill(os.getpid(), signal.SIGINT)
    pathlib.Path({done!r}).touch()

signal.signal(signal.SIGINT, signal.default_int_handler)
atexit.register(clean_up)
sys.orig_argv = [sys.executable, "-m", "tvm_fusion.cli"]
from tvm_fusion.cli import main
main(["inspect", {folder!r}])
"""


def test_an_interrupt_on_the_way_out_stops_no_cleaning_up(dense_folder, tmp_path):
    program = AT_EXIT.format(done=str(tmp_path / "done"), folder=str(dense_folder))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "model.so" in done.stdout
    assert (tmp_path / "done").exists()


@pytest.mark.slow
def test_without_an_interrupt_the_program_runs(dense_file):
    words = (
        "explain",
        dense_file,
        "--dim",
        "batch=1",
        "--no-stock",
        "-q",
    )  # progress of a slow run
    done = interrupted_at("no.such.module", *words)
    assert (done.returncode, done.stderr) == (0, "")


# Sends what a terminal sends for Ctrl-C, to all processes of the group, after seconds of computing.
TIMED = """
import os, runpy, signal, sys

def interrupt(*_):
    os.killpg(0, signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGPROF, interrupt)
signal.setitimer(signal.ITIMER_PROF, float(sys.argv.pop(1)))
sys.orig_argv = [sys.executable, "-m", "tvm_fusion.cli", *sys.argv[1:]]
runpy.run_module("tvm_fusion.cli", run_name="__main__")
"""
STAGES = "planning", "measuring defaults", "tuning", "racing the whole model", "done"
COMMANDS = {
    "compile": ["{m}", "-o", "{here}/out", "--dim", "batch=1", "--quiet"],
    "tune": ["{m}", "--db", "{here}/out", "--dim", "batch=1", "--budget", "trials=4"],
    "bisect": ["{m}", "--dim", "batch=1", "--quiet"],
    "bundle": ["{a}", "-o", "{here}/out", "--quiet"],
}


# Seconds of computing until a program is through, or waits for others to compute.
LONGEST = {"compile": 1.0, "tune": 1.0, "bisect": 1.0, "bundle": 0.15}


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_an_interrupt_at_a_random_moment(dense_file, dense_folder, tmp_path, name):
    seconds = random.uniform(0.01, LONGEST[name])
    interrupted_in_time(tmp_path, name, seconds, m=dense_file, a=dense_folder)


CMAKE = """#!/bin/sh
touch "$4/half"
kill -INT 0
"""


def test_an_interrupt_while_the_runner_is_built(dense_folder, tmp_path):
    """By a CMake that sends it to all processes of the group."""
    cmake = tmp_path / "tools" / "cmake"
    cmake.parent.mkdir()
    cmake.write_text(CMAKE)
    cmake.chmod(0o755)
    path = os.pathsep.join([str(cmake.parent), os.environ["PATH"]])
    assert interrupted_in_time(tmp_path, "bundle", 1000, a=dense_folder, PATH=path) == 130
    assert not list((tmp_path / "here").iterdir())


def interrupted_in_time(folder, name, seconds, PATH=os.environ["PATH"], **names):
    """Nothing half written is left, no temporary file and no process; gives the exit code."""
    here, temporary = folder / "here", folder / "temporary"
    here.mkdir()
    temporary.mkdir()
    arguments = [name, *(argument.format(**names, here=here) for argument in COMMANDS[name])]
    process = subprocess.Popen(
        [sys.executable, "-c", TIMED, str(seconds), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(temporary), "PATH": PATH},
        start_new_session=True,
    )
    out, err = process.communicate()
    found = f"after {seconds:.3f} s: {process.returncode} {err}"
    if process.returncode == 130:
        assert err.endswith(LINE), found
        before = err.removesuffix(LINE).splitlines()
        assert all(name == "tune" and line.startswith(STAGES) for line in before), found
        assert out == "" or out.endswith("\n"), found  # nothing, or all that it has to tell
    else:  # it was through before
        assert process.returncode == 0, found
    assert _is_gone(process.pid), found
    assert not list(temporary.iterdir()), found
    assert {path.name for path in here.iterdir()} <= {"out"}, found
    if (here / "out").exists():
        check = {"tune": ["tune", "--db", here / "out", "--list"]}
        where = here / "out" / "model" if name == "bundle" else here / "out"
        arguments = check.get(name, ["inspect", where, "--verify"])
        command = [sys.executable, "-m", "tvm_fusion.cli", *map(str, arguments)]
        assert subprocess.run(command, stdout=subprocess.DEVNULL).returncode == 0, found
    return process.returncode


def _is_gone(group):
    """Whether no process of a group is left; its last one may take a moment, or many."""
    for _ in range(6000):
        with suppress(ProcessLookupError):
            os.killpg(group, 0)
            time.sleep(0.1)
            continue
        return True
    return False
