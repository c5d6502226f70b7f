"""Ctrl-C at any moment: one line, exit code 130, nothing left behind."""

import subprocess
import sys

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
def test_an_interrupt_while_modules_are_imported(module, dense_file, tmp_path):
    folder = tmp_path / "out"
    done = interrupted_at(module, "compile", dense_file, "-o", folder, "--dim", "batch=1")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", LINE)
    assert not list(tmp_path.iterdir())


def test_an_interrupt_inside_a_pass_is_no_error_of_tvm(dense_file, tmp_path, monkeypatch):
    """Left to itself TVM makes a RuntimeError of it, which a guard would take for a fallback."""
    import tvm_fusion
    from tvm_fusion.schedule.contraction.template_cpu import CpuContraction
    from tvm_fusion.schedule.elementwise.template import Elementwise

    def interrupt(*_arguments):
        raise KeyboardInterrupt

    for template in (Elementwise, CpuContraction):
        monkeypatch.setattr(template, "emit", interrupt)
    with pytest.raises(KeyboardInterrupt):
        tvm_fusion.compile(dense_file, dims={"batch": 1})


def test_without_an_interrupt_the_program_runs(dense_file):
    done = interrupted_at("no.such.module", "explain", dense_file, "--dim", "batch=1", "--no-stock")
    assert (done.returncode, done.stderr) == (0, "")
