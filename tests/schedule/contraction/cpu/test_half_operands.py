"""Half-type operands of GEMMs on CPUs without an instruction for them, in float32 panels."""

import re
from dataclasses import replace

import ml_dtypes  # noqa: F401  numpy's bfloat16
import numpy as np
import pytest
import tvm
from group_kernels import group, kernel, tensor
from relax_modules import main_module
from tvm import relax

from tvm_fusion.device import parse
from tvm_fusion.schedule.contraction.cpu.blocking import GemmProblem, Machine, default_blocking
from tvm_fusion.schedule.contraction.cpu.templates.gemm import CpuContraction
from tvm_fusion.schedule.cpu.register_tile import VectorUnit

op = relax.op
SHAPES = [(61, 67, 45), (37, 130, 24)]  # rows, K, columns


def times(weight):
    def body(emit, x):
        w = relax.const(tvm.runtime.tensor(weight))
        return emit(op.matmul(x, w, out_dtype="float32"))

    return body


def script(dtype, m, k, n, name):
    spec, weight = parse(name), np.ones((k, n), dtype)
    members = group([tensor("x", m, k, dtype=dtype)], times(weight), spec)
    return kernel(CpuContraction(), members, spec)[1].script()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("shape", SHAPES)
def test_sums_are_exact(shape, dtype):
    """As exact as those of float32, at sizes that are no whole tiles."""
    spec, (m, k, n) = parse("cpu:x86-64-v3"), shape
    if not set(spec.device.features) <= set(parse("cpu").device.features):
        pytest.skip("this CPU lacks the instructions")
    rng = np.random.default_rng()
    x, w = (rng.standard_normal(s).astype(dtype) for s in ((m, k), (k, n)))
    params, target = [tensor("x", m, k, dtype=dtype)], spec.tvm_target()
    pipelines = {"relax_pipeline": "tvm_fusion", "tir_pipeline": "tvm_fusion"}
    with target:
        mod = main_module(params, times(w))
        built = tvm.compile(mod, target, **pipelines)
    found = relax.VirtualMachine(built, tvm.cpu())["main"](tvm.runtime.tensor(x)).numpy()
    expected = x.astype("float64") @ w.astype("float64")
    assert np.abs(found - expected).max() <= 1e-6 * np.abs(expected).max()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["cpu:x86-64-v3", "cpu:x86-64-v4", "cpu:neoverse-n1"])
def test_operands_are_widened_once(name, dtype):
    """Products read float32: of A once for all panels, of B once for all tiles of rows."""
    text = script(dtype, *SHAPES[0], name)
    for buffer in ("rows", "columns"):  # of float32, which is not printed
        assert re.search(rf'{buffer} = T\.sblock_alloc_buffer\([^"]*scope="local"\)', text)


@pytest.mark.parametrize("name", ["cpu:x86-64-v3", "cpu:x86-64-v4"])
def test_few_rows_are_widened_in_registers(name):
    assert "columns" not in script("bfloat16", 1, 64, 48, name)


def test_few_tasks_convert_the_same_rows():
    machine = Machine(VectorUnit(8, 16), cores=2)
    problem = GemmProblem(m=128, n=768, k=768, batch=1)
    plain = default_blocking(problem, machine)
    halves = default_blocking(replace(problem, computes_a=True, widens_b=True), machine)
    assert halves.panels * halves.nr >= 4 * plain.panels * plain.nr
