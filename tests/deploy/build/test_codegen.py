"""Kernels are compiled in parts, each once, and under what the caller set."""

import itertools

import numpy as np
import pytest
import tvm
from relax_modules import main_module
from rounding import assert_sums_close
from tvm import relax
from tvm.script import ir as I
from tvm.script import tirx as T
from tvm.target import Target

import tvm_fusion
from tvm_fusion.deploy.build import codegen


def kernels(count: int) -> dict:
    @I.ir_module
    class Module:
        @T.prim_func(s_tir=True)
        def one(a: T.Buffer((4,), "float32"), b: T.Buffer((4,), "float32")):
            for i in range(4):
                with T.sblock("b"):
                    v = T.axis.spatial(4, i)
                    b[v] = a[v] + T.float32(1)

    return {tvm.ir.GlobalVar(f"k{i}"): Module["one"] for i in range(count)}


@pytest.mark.parametrize("count", [1, 7, 30])
@pytest.mark.parametrize("target", [Target("llvm"), Target({"kind": "cuda", "arch": "sm_90a"})])
def test_every_kernel_is_in_one_part(monkeypatch, count, target):
    monkeypatch.setattr(codegen.os, "sched_getaffinity", lambda _: {0, 1, 2})
    given = kernels(count)
    parts = codegen._parts(given, target)
    assert [g for part in parts for g in part] != []
    assert sum(map(len, parts)) == count
    assert {g.name_hint for part in parts for g in part} == {g.name_hint for g in given}
    wanted = {"llvm": min(12, count), "cuda": {1: 1, 7: 1, 30: 3}[count]}
    assert len(parts) == wanted[target.kind.name]


def test_amd_code_is_one_object_and_an_instrument_sees_one_thread():
    rocm = Target({"kind": "rocm", "mcpu": "gfx942"})
    assert len(codegen._parts(kernels(30), rocm)) == 1
    with tvm.transform.PassContext(instruments=[tvm.ir.instrument.PassTimingInstrument()]):
        assert len(codegen._parts(kernels(30), Target("llvm"))) == 1


def test_a_part_that_fails_raises_its_error(monkeypatch):
    def fail(*_):
        raise RuntimeError("no code")

    monkeypatch.setattr(codegen, "_compile", fail)
    mod = tvm.IRModule(
        {g: f.with_attr("global_symbol", g.name_hint) for g, f in kernels(3).items()}
    )
    with (
        pytest.raises(RuntimeError, match="no code"),
        codegen.compiling(mod, Target("llvm"), "tvm_fusion") as compiled,
    ):
        compiled()


@pytest.mark.slow
def test_many_kernels_of_one_model_are_all_found(tmp_path, monkeypatch):
    """More parts than cores; every kernel is another one."""

    def body(emit, x):
        reductions = itertools.product((0, 1), (relax.op.sum, relax.op.max, relax.op.min))
        parts = [emit(reduce(x, [axis], keepdims=True)) for axis, reduce in reductions]
        return [relax.op.multiply(p, p) for p in parts]

    mod = main_module([relax.Var("x", relax.TensorType((3, 5), "float32"))], body)
    folder = tvm_fusion.compile(mod, "cpu").export(tmp_path / "model")
    data = np.random.default_rng().normal(size=(3, 5)).astype("float32")
    results = tvm_fusion.load(folder).run({"x": data})
    exact = data.astype("float64")
    wanted = [(f, axis) for axis in (0, 1) for f in (np.sum, np.max, np.min)]
    for found, (f, axis) in zip(results.values(), wanted, strict=True):
        size = np.abs(exact).sum(axis, keepdims=True)
        # The sum's roundings count twice in the square.
        assert_sums_close(found, f(exact, axis=axis, keepdims=True) ** 2, size**2, 2 * 5 + 1)
