"""The pipelines inside plain TVM code, and what every stage owes the module it is given."""

import subprocess
import sys

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.relax.ir.instrument import WellFormedInstrument
from tvm.script import ir as I
from tvm.script import relax as R

from tvm_fusion import pipeline, transform
from tvm_fusion.device import parse

pytestmark = pytest.mark.slow_beyond(2)

ROWS, COLUMNS = 7, 33


@I.ir_module
class Model:
    @R.function
    def main(x: R.Tensor((7, 33), "float32"), w: R.Tensor((33, 33), "float32")) -> R.Tensor(
        (7, 33), "float32"
    ):
        with R.dataflow():
            h = R.matmul(x, w)
            s = R.nn.softmax(h, axis=-1)
            y = R.add(s, x)
            R.output(y)
        return y

    @R.function
    def flat(x: R.Tensor((7, 33), "float32")) -> R.Tensor((231,), "float32"):
        with R.dataflow():
            y = R.reshape(R.nn.relu(x), R.shape([231]))
            R.output(y)
        return y


@pytest.fixture(scope="module")
def target():
    return parse("cpu").tvm_target()


def reference(x, w):
    x, w = x.astype("float64"), w.astype("float64")
    h = x @ w
    e = np.exp(h - h.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True) + x


def run_both(executable):
    rng = np.random.default_rng(1)
    x, w = rng.standard_normal((7, 33), "float32"), rng.standard_normal((33, 33), "float32")
    machine = relax.VirtualMachine(executable, tvm.cpu())
    y = machine["main"](tvm.runtime.tensor(x), tvm.runtime.tensor(w)).numpy()
    np.testing.assert_allclose(y, reference(x, w), rtol=1e-5, atol=1e-5)
    flat = machine["flat"](tvm.runtime.tensor(x)).numpy()
    np.testing.assert_array_equal(flat, np.maximum(x, 0).reshape(-1))


def test_whole_build_by_name(target):
    run_both(tvm.compile(Model, target, relax_pipeline="tvm_fusion", tir_pipeline="tvm_fusion"))


def test_inside_an_existing_pipeline(target):
    mod = relax.get_pipeline("tvm_fusion", target=target)(Model)
    run_both(tvm.compile(mod, target))


def test_without_lowering_the_caller_plans_memory(target):
    mod = relax.get_pipeline("tvm_fusion", target=target, lower=False)(Model)
    assert "call_tir" in mod["main"].script()
    run_both(tvm.compile(mod, target, relax_pipeline="default_build"))


def test_takes_the_current_target(target):
    with target:
        mod = relax.get_pipeline("tvm_fusion")(Model)
    tvm.ir.assert_structural_equal(mod, relax.get_pipeline("tvm_fusion", target=target)(Model))


@pytest.mark.parametrize("lower", [True, False])
def test_idempotent(target, lower):
    passes = relax.get_pipeline("tvm_fusion", target=target, lower=lower)
    once = passes(Model)
    tvm.ir.assert_structural_equal(passes(once), once)


@I.ir_module
class Algebraic:
    @R.function
    def main(x: R.Tensor((7, 33), "float32"), y: R.Tensor((7, 33), "float32")) -> R.Tensor(
        (7, 33), "float32"
    ):
        with R.dataflow():
            once = R.multiply(x, R.const(1.0))
            p = R.nn.softmax(R.add(once, y))
            q = R.reshape(R.multiply(R.const(1.0), p), R.shape([33, 7]))
            r = R.add(R.reshape(q, R.shape([7, 33])), R.multiply(p, y))
            R.output(r)
        return r


@pytest.mark.parametrize("lower", [True, False])
def test_rewriting_is_done_the_first_time(target, lower):
    with target:
        rewritten = transform.Rewrite()(Algebraic)
    assert rewritten["main"].script().count("R.multiply(") == 1
    passes = relax.get_pipeline("tvm_fusion", target=target, lower=lower)
    once = passes(Algebraic)
    tvm.ir.assert_structural_equal(passes(once), once)


def test_does_not_change_its_argument(target):
    before = tvm_ffi.structural_hash(Model)
    relax.get_pipeline("tvm_fusion", target=target)(Model)
    assert tvm_ffi.structural_hash(Model) == before


@pytest.mark.slow
@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize("first", ["tvm", "tvm_fusion"])
def test_registered_in_any_order_of_imports(first):
    second = {"tvm": "tvm_fusion", "tvm_fusion": "tvm"}[first]
    code = (
        f"import {first}, {second}; from tvm import relax; from tvm.tirx import get_tir_pipeline;"
        "relax.get_pipeline('tvm_fusion'); get_tir_pipeline('tvm_fusion'); print('registered')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "registered"


def test_every_stage_leaves_foreign_functions_alone(target):
    @R.function(private=True)
    def matched(x: R.Tensor((7, 33), "float32")) -> R.Tensor((7, 33), "float32"):
        R.func_attr({"Composite": "library.relu_exp", "Codegen": "library"})
        with R.dataflow():
            a = R.nn.relu(x)
            y = R.exp(a)
            R.output(y)
        return y

    builder = relax.BlockBuilder()
    foreign = builder.add_func(matched, "matched")
    x = relax.Var("x", relax.TensorType((7, 33), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            inner = builder.emit(relax.op.tanh(x))
            y = builder.emit_output(relax.Call(foreign, [inner]))
        builder.emit_func_output(y)
    mod = builder.get()
    with target:
        for stage in [transform.NormalizeImport(), *pipeline.stages()]:
            mod = stage(mod)
            tvm.ir.assert_structural_equal(mod["matched"], matched)
    assert "matched" in mod["main"].script()


def test_scheduled_functions_stay_as_they_are(target):
    with target:
        staged = relax.get_pipeline("tvm_fusion", lower=False)(Model)
        names = [g.name_hint for g, f in staged.functions.items() if isinstance(f, tirx.PrimFunc)]
        mod = transform.ScheduleKernels()(transform.FuseOperators()(transform.Legalize()(staged)))
    assert names
    for name in names:
        tvm.ir.assert_structural_equal(mod[name].body, staged[name].body)


def test_stages_keep_modules_well_formed(target):
    mod = Model
    with target:
        for stage in [transform.NormalizeImport(), *pipeline.stages(), transform.LowerToVM()]:
            mod = stage(mod)
            relax.analysis.well_formed(mod)  # raises


def test_passes_inside_of_stages_keep_modules_well_formed(target):
    """As TVM's own tests and developers check every pass."""
    with tvm.transform.PassContext(instruments=[WellFormedInstrument()]):
        relax.get_pipeline("tvm_fusion", target=target)(Model)


def test_thread_level_kernels_and_scheduled_ones_in_one_module(target):
    from tvm.script import tirx as T

    @T.prim_func
    def thread_level(a: T.Buffer((16,), "float32"), b: T.Buffer((16,), "float32")):
        for i in range(16):
            b[i] = a[i] * T.float32(2)

    assert not thread_level.attrs.get("s_tir", False)
    builder = relax.BlockBuilder()
    kernel = builder.add_func(thread_level.with_attr("global_symbol", "double"), "double")
    x = relax.Var("x", relax.TensorType((16,), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            h = builder.emit(relax.op.exp(x))
            out = relax.TensorType((16,), "float32")
            y = builder.emit_output(relax.call_tir(kernel, (h,), out_ty=out))
        builder.emit_func_output(y)
    executable = tvm.compile(
        builder.get(), target, relax_pipeline="tvm_fusion", tir_pipeline="tvm_fusion"
    )
    x = np.random.default_rng(2).standard_normal(16, "float32")
    y = relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(x)).numpy()
    np.testing.assert_allclose(y, 2 * np.exp(x.astype("float64")), rtol=1e-6)


def test_says_what_a_target_without_a_cpu_costs():
    with pytest.warns(UserWarning, match='names no CPU.*write "cpu" for this machine'):
        relax.get_pipeline("tvm_fusion", target=tvm.target.Target("llvm"))(Model)
