"""Candidates of a tuner on an AMD GPU, measured in a process without the compiler's help."""

import shutil

import pytest
from scaled_chain import LAYERS, ROWS, WIDTH, chain, export_unlinked

from tvm_fusion.deploy.runtime.artifact import manifest
from tvm_fusion.tuning.candidate_bench.tensors import Runtime
from tvm_fusion.tuning.candidate_bench.worker import Clock, Task


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rocm") / "a"
    return export_unlinked(chain(), "rocm:gfx942", folder, cuda_graph=False) / manifest.LIBRARY


def test_candidates_are_measured(hip, library, tmp_path):
    shutil.copy(library, tmp_path / "a.so")
    shape = [[ROWS, WIDTH], "float32"]
    candidate = {"file": "a.so", "weights": [[number] for number in range(LAYERS)]}
    task = {"inputs": [shape], "weights": [[*shape, 0.0, 1.0]] * LAYERS, "repeats": 1}
    task["candidates"] = [candidate] * 2
    runtime = Runtime("rocm")
    data = {"seed": 0, "tolerance": {"float32": 1e-6}}
    measured = Task(tmp_path, data, task, runtime, Clock.of(runtime))
    assert measured.default_us > 0
    assert min(measured.measure(1, 0.001)) > 0
    assert hip.launches() > 10
