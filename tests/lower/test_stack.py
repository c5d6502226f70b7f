"""Small buffers of scope local stay on the stack; TVM would take them from a pool."""

import numpy as np
import pytest
import tvm
from relax_modules import main_module
from tvm import relax, tirx
from tvm.relax.backend import DispatchSortScan
from tvm.script import tirx as T

from tvm_fusion.deploy.toolchain import toolchain
from tvm_fusion.device import parse
from tvm_fusion.lower import cpu

TARGET = parse("cpu").tvm_target()


@T.prim_func(s_tir=True)
def reverse(x: T.Buffer((600,), "float32"), y: T.Buffer((600,), "float32")):
    with T.sblock("root"):
        kept = T.sblock_alloc_buffer((600,), "float32", scope="local")
        for i in range(600):
            kept[599 - i] = x[i]
        for i in range(600):
            y[i] = kept[i] + kept[599 - i]


def source(pipeline):
    func = reverse.with_attrs({"global_symbol": "main", "tirx.is_scheduled": True})
    built = tvm.tirx.build(tvm.IRModule({"main": func}), TARGET, pipeline=pipeline)
    x = np.arange(600, dtype="float32")
    y = tvm.runtime.tensor(np.zeros_like(x))
    built["main"](tvm.runtime.tensor(x), y)
    np.testing.assert_array_equal(y.numpy(), x + x[::-1])
    return built.inspect_source("ll")


def test_a_buffer_of_one_thread_is_on_the_stack():
    assert "TVMBackendAllocWorkspace" not in source("tvm_fusion")


def test_tvm_takes_it_from_a_pool():
    """When this fails, `lower.cpu` can go."""
    assert "TVMBackendAllocWorkspace" in source("s_tir")


@pytest.mark.cuda_toolchain
def test_a_launcher_allocates_on_the_device():
    """TVM's scans keep what their kernels share in scope local, around the launches."""
    spec = parse("cuda:sm_90a")
    x = relax.Var("x", relax.TensorType((129, 5), "float32"))
    with toolchain(spec), spec.tvm_target():
        mod = DispatchSortScan()(main_module([x], relax.op.cumsum(x, axis=0)))
        (scan,) = (f for f in mod.functions.values() if isinstance(f, tirx.PrimFunc))
        scan = scan.with_attr("global_symbol", "main")
        built = tvm.tirx.build(
            tvm.IRModule({"main": scan}), spec.tvm_target(), pipeline="tvm_fusion"
        )
    assert built.inspect_source("ll").count("alloca i32") == 0


def test_a_large_one_is_not(monkeypatch):
    monkeypatch.setattr(cpu, "MOST_BYTES", 2000)
    assert "TVMBackendAllocWorkspace" in source("tvm_fusion")
