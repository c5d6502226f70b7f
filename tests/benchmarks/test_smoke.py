"""Every benchmark and tool that `python -m benchmarks.NAME` starts, with its smallest input.

A new one fails here until it has a case: a command of its own, or the test file that runs it.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent

#: The smallest input, where it needs no GPU and is no matter of minutes. Records and pages are
#: written to a copy of the tree.
COMMANDS = {
    "fusion": ["--table"],
    "gpu.fused_gemms": [],
    "literature": ["--parts"],
    "llm.gpu_table": [],
    "nbits": ["--render"],
    "operators_onnx": ["--only", "^test_relu_cpu$", "--workers", "1"],
    "operators_speed": ["--render"],
    "prices": ["--table"],
    "summary": [],
    "shared_cores": ["--render"],
    "symbolic": ["--render"],
    "convolutions": ["--render"],
    "amd_clocks": ["--render"],
    "amd_emulator": ["--render"],
}
TORCH = {
    "llm": ["--help"],
    "operators_torch": ["--render"],
    "parallel": ["--render"],
    "robustness": ["--render"],
    "zoo.export": ["--help"],
}
#: What measures for minutes, or on a GPU, or a checkout of other sources: its command line is read
#: here, and its parts are tested where the second column says.
COMMAND_LINES = {
    "convolutions.low_precision": None,
    "convolutions.measure": None,
    "convolutions.winograd": None,
    "gpu": "test_gpu_speed.py",
    "gpu.run": "test_gpu_speed.py",
    "gpu_models": "test_gpu_models.py",
    "gpu_models.run": "test_gpu_models.py",
    "gpu_sanitizer": "test_gpu_sanitizer.py",
    "gpu_sanitizer.run": "test_gpu_sanitizer.py",
    "harness.table": "test_harness.py",
    "kernel_diff": "test_kernel_diff.py",
    "llm.gpu": "test_llm_gpu.py",
    "owners": "test_owners.py",
    "parallel.gpu": "test_parallel_gpu.py",
    "prices.run": "test_prices.py",
    "graphnet": "test_graphnet.py",
    "half_sweep": "test_half_sweep.py",
    "real_models": "test_real_models.py",
    "real_models.clients": "test_real_models.py",
    "rewriting": "test_rewriting.py",
    "compile_time": "test_compile_time.py",
    "cost_model": "test_cost_model.py",
    "harness": "test_harness.py",
    "cpu_threads": None,
    "cpu_threads.run": None,
    "cpu_half": None,
    "cpu_half.gemm": None,
    "cpu_half.run": None,
    "cpu_half.whole": None,
    "qdq": "test_qdq.py",
    "qdq.run": "test_qdq.py",
    "held_out": None,
    "held_out.run": None,
}
#: Processes that the commands above start, without a command line for people.
WORKERS = {
    *("cpu_half.gemm_worker", "cpu_half.prepare", "cpu_half.worker", "held_out.worker"),
    *("cpu_threads.prepare", "cpu_threads.worker"),
    *("qdq.prepare", "qdq.worker"),
    *("compile_time.sample", "gpu.once", "gpu.warm", "prices.compile_worker", "gpu_models.worker"),
    *("harness.arena", "harness.worker", "kernel_diff.collect"),
    *("graphnet.run", "half_sweep.worker", "operators_onnx.worker", "operators_speed.measure"),
    *("real_models.runner", "runtime_alone", "shared_cores.process"),
    *("llm.llama_cpp_worker", "llm.step_worker", "operators_torch.worker"),
    *("parallel.compile_worker", "parallel.torch_peer"),
}
ELSEWHERE = {"demo": "test_demo.py"}


def runnable():
    """Name the modules that do something when they are started."""
    for path in sorted((ROOT / "benchmarks").rglob("*.py")):
        if '__name__ == "__main__"' in path.read_text():
            parts = path.relative_to(ROOT / "benchmarks").with_suffix("").parts
            yield ".".join(part for part in parts if part != "__main__")


def test_each_has_a_case():
    cases = [*COMMANDS, *TORCH, *COMMAND_LINES, *WORKERS, *ELSEWHERE]
    assert sorted(cases) == sorted(runnable())
    for file in {*COMMAND_LINES.values(), *ELSEWHERE.values()} - {None}:
        assert (HERE / file).is_file()


@pytest.fixture(scope="session")
def tree(tmp_path_factory):
    """A copy that records and pages are written to."""
    folder = tmp_path_factory.mktemp("tree")
    shutil.copytree(ROOT / "benchmarks", folder / "benchmarks")
    shutil.copy(ROOT / "README.md", folder)
    return folder


def run(tree, name, arguments):
    path = os.pathsep.join(filter(None, [str(tree), os.environ.get("PYTHONPATH"), str(ROOT)]))
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}", *arguments],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
@pytest.mark.every_case
@pytest.mark.parametrize("name", COMMANDS)
def test_its_smallest_input_runs(tree, name):
    run(tree, name, COMMANDS[name])


@pytest.mark.torch
@pytest.mark.every_case
@pytest.mark.parametrize("name", TORCH)
def test_its_smallest_input_runs_with_torch(tree, name):
    pytest.importorskip("torch")
    run(tree, name, TORCH[name])


READ = """
import contextlib, io, runpy, sys
for name in sys.argv[1:]:
    sys.argv, printed = [name, "--help"], io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        runpy.run_module(f"benchmarks.{name}", run_name="__main__")
    assert printed.getvalue().startswith("usage:"), name
"""


@pytest.mark.slow
@pytest.mark.torch
def test_command_lines_are_read():
    """In one process, since each imports TVM and PyTorch for seconds."""
    done = subprocess.run(
        [sys.executable, "-c", READ, *COMMAND_LINES], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]


INSTALLED = """
import sys
from pathlib import Path
from benchmarks.amd_emulator import runtime
from tvm_fusion.deploy.runtime import load

runtime.Emulator = lambda folder, reverse: None
runtime.install(Path("."), "cc")
target = {"kind": "rocm", "archs": ["gfx942"], "text": "rocm:gfx942"}
device, arch = load._open_device(Path("."), {"target": target})
print(device.type, arch)
"""


def test_the_emulated_amd_device_is_opened_as_others_are():
    done = subprocess.run(
        [sys.executable, "-c", INSTALLED], cwd=ROOT, capture_output=True, text=True
    )
    assert done.stdout.split() == ["rocm", "gfx942"], done.stderr[-2000:]
