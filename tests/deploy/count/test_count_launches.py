"""The count against the true launches of compiled executables, on a stand-in for CUDA."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import counted_graphs as graphs
import pytest
from fake_cuda.build import build

from tvm_fusion.deploy.count import count, count_stock

pytestmark = pytest.mark.slow_beyond(2)

HERE = Path(__file__).parent
CALLS = [(name, f) for name, entry in graphs.GRAPHS.items() for f in entry.functions]


@pytest.fixture(scope="session")
def launched(tmp_path_factory: pytest.TempPathFactory) -> dict:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("the stand-in for CUDA needs a C compiler")
    folder = tmp_path_factory.mktemp("fake_cuda")
    build(compiler, folder)
    run = subprocess.run(
        [sys.executable, str(HERE / "launch_on_fake.py"), str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


@pytest.mark.parametrize("variant", graphs.VARIANTS)
@pytest.mark.parametrize(("name", "function"), CALLS)
@pytest.mark.slow
def test_count_is_what_a_device_launches(
    launched: dict, variant: str, name: str, function: str
) -> None:
    entry, target = graphs.GRAPHS[name], graphs.cuda()
    mod = graphs.VARIANTS[variant](entry, target)
    counted = count(mod, target, function=function, dims=entry.dims)
    true = launched[variant][name][function]
    assert counted.kernels - counted.copies == true["kernels"]
    assert counted.copies == true["copies"]
    assert counted.host_launches == true["host_launches"]
    assert counted.library_calls == 0
    assert not counted.caveats


@pytest.mark.slow
@pytest.mark.parametrize("name", ["softmax_in_cuda_graph", "symbolic_cuda_graph"])
def test_cuda_graph_was_really_used(launched: dict, name: str) -> None:
    assert launched["stock"][name]["main"]["graph_launches"] == 1
    assert launched["stock"]["softmax_written_out"]["main"]["graph_launches"] == 0


@pytest.mark.slow
def test_ours_is_one_graph_and_two_launches(launched: dict) -> None:
    true = launched["ours"]["blocks_with_a_cache"]["main"]
    entry, target = graphs.GRAPHS["blocks_with_a_cache"], graphs.cuda()
    counted = count(graphs.ours(entry, target), target, tir_pipeline="tvm_fusion")
    assert counted.kernels == true["kernels"] > 5
    assert true["graph_launches"] == 1
    assert counted.host_launches == true["host_launches"] == 3


@pytest.mark.slow
@pytest.mark.parametrize("name", ["attention_operator", "symbolic_batch", "topk"])
def test_count_stock_runs_the_default_pipeline(launched: dict, name: str) -> None:
    entry = graphs.GRAPHS[name]
    counted = count_stock(entry.build(), graphs.cuda(), dims=entry.dims)
    assert counted.kernels == launched["stock"][name]["main"]["kernels"]


def test_one_primfunc_may_launch_several_kernels() -> None:
    counted = count_stock(graphs.GRAPHS["attention_operator"].build(), graphs.cuda())
    assert (counted.calls, counted.kernels) == (1, 5)
    scores, rows, output = 2 * 3 * 31 * 31, 2 * 3 * 31, 2 * 3 * 31 * 64
    assert counted.hidden_bytes == (scores + 2 * rows + output) * 4
