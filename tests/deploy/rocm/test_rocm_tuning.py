"""Candidates of a tuner on an AMD GPU, measured in a process without the compiler's help."""

import shutil

import pytest
from onnx import TensorProto as T
from softmax_chain import ROWS, WIDTH, export_unlinked
from tiny_models import onnx_model

from tvm_fusion.deploy.runtime import manifest
from tvm_fusion.tuning.candidate_bench.clock import Clock
from tvm_fusion.tuning.candidate_bench.tensors import Runtime
from tvm_fusion.tuning.candidate_bench.worker import Task


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    shape, root = [ROWS, WIDTH], tmp_path_factory.mktemp("rocm")
    nodes = [("Softmax", ["x"], ["y"])]
    model = onnx_model(nodes, [("x", T.FLOAT, shape)], [("y", T.FLOAT, shape)])
    return export_unlinked(model, "rocm:gfx942", root / "a") / manifest.LIBRARY


def test_candidates_are_measured(hip, library, tmp_path):
    shutil.copy(library, tmp_path / "a.so")
    candidate = {"file": "a.so", "weights": []}
    task = {"inputs": [[[ROWS, WIDTH], "float32"]], "weights": [], "repeats": 1}
    task["candidates"] = [candidate] * 2
    runtime = Runtime("rocm")
    data = {"seed": 0, "tolerance": {"float32": 1e-6}}
    measured = Task(tmp_path, data, task, runtime, Clock.of(runtime))
    assert measured.default_us > 0
    assert min(measured.measure(1, 0.001)) > 0
    assert hip.launches() > 10
