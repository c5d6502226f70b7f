"""Kernels check what callers pass, and nothing that the virtual machine allocates or loads."""

import re

import numpy as np
import pytest
import tvm
import tvm_ffi
from relax_modules import main_module
from tvm import relax, tirx
from tvm.script import tirx as T
from tvm.target import Target

import tvm_fusion
from tvm_fusion._tvm.ir.structural import structural_walk
from tvm_fusion.deploy.build import codegen as checked_arguments
from tvm_fusion.deploy.build.codegen import compiling
from tvm_fusion.deploy.runtime.artifact.manifest import INTO
from tvm_fusion.lower.cleanup import CHECKED, DropArgumentChecks, with_checked

SHAPE = (37, 64)


def weight():
    return np.random.default_rng().normal(size=(64, 43)).astype("float32")


def two_kernels(matrix: np.ndarray) -> tvm.IRModule:
    """Two kernels: softmax(x @ weight), of which the first alone reads the input."""

    def body(emit, x):
        return [emit(relax.op.nn.softmax(emit(relax.op.matmul(x, relax.const(matrix)))))]

    return main_module([relax.Var("x", relax.TensorType(SHAPE, "float32"))], body)


def compiled_marks(monkeypatch, mod: tvm.IRModule) -> dict[str, list[int]]:
    """Compile; returns the marks of kernels by name."""
    found: dict[str, list[int]] = {}
    mark = checked_arguments.mark_checked_arguments

    def spy(*args):
        marked = mark(*args)
        for gvar, func in marked.items():
            found[gvar.name_hint] = [int(k) for k in (func.attrs or {}).get(CHECKED, ())]
        return marked

    monkeypatch.setattr("tvm_fusion.deploy.build.codegen.mark_checked_arguments", spy)
    tvm_fusion.compile(mod, "cpu")
    return found


def test_inputs_and_destinations_are_checked_and_nothing_else(monkeypatch):
    marks = compiled_marks(monkeypatch, two_kernels(weight()))
    (product,) = (m for name, m in marks.items() if "matmul" in name)
    (softmax,) = (m for name, m in marks.items() if "softmax" in name)
    assert product == [1, 2]  # the weight and what it writes; not the input
    assert softmax == [0]  # what it writes is a destination in one of the two functions


def test_a_view_of_an_input_is_checked_and_one_of_a_result_is_not(monkeypatch):
    def body(emit, x):
        flat = emit(relax.op.reshape(x, (37 * 64,)))
        sums = emit(relax.op.cumsum(flat))
        back = emit(relax.op.reshape(sums, SHAPE))
        return [emit(relax.op.nn.softmax(back))]

    mod = main_module([relax.Var("x", relax.TensorType(SHAPE, "float32"))], body)
    marks = compiled_marks(monkeypatch, mod)
    (sums,) = (m for name, m in marks.items() if "cumsum" in name)
    (softmax,) = (m for name, m in marks.items() if "softmax" in name)
    assert 0 not in sums
    assert 0 in softmax


def test_functions_that_nothing_calls_are_checked():
    func = packed_source()
    gvar = tvm.ir.GlobalVar("add")
    mark = checked_arguments.mark_checked_arguments
    (alone,) = mark(tvm.IRModule({}), {gvar: func}).values()
    (loaders,) = mark(tvm.IRModule({}), {gvar: func}, {"add"}).values()
    assert CHECKED not in alone.attrs
    assert [int(k) for k in loaders.attrs[CHECKED]] == [0, 1, 2]


@pytest.fixture
def library(tmp_path):
    matrix = weight()
    folder = tvm_fusion.compile(two_kernels(matrix), "cpu").export(tmp_path / "model")
    return tvm_fusion.load(folder), matrix


def test_results_are_right(library):
    loaded, matrix = library
    x = np.random.default_rng().normal(size=SHAPE).astype("float32")
    (found,) = loaded.run({"x": x}).values()
    scores = x.astype("float64") @ matrix
    wanted = np.exp(scores - scores.max(-1, keepdims=True))
    np.testing.assert_allclose(found, wanted / wanted.sum(-1, keepdims=True), rtol=2e-5, atol=1e-7)


@pytest.mark.parametrize("function", ["main", "main" + INTO])
def test_strides_of_an_input_are_refused_by_the_kernel_that_reads_it(library, function):
    """What goes past the loader's own checks is still not read as if it were contiguous."""
    loaded, _ = library
    wide = np.random.default_rng().normal(size=(SHAPE[0], 2 * SHAPE[1])).astype("float32")
    strided = tvm_ffi.from_dlpack(wide[:, ::2])
    weights = loaded._weights["main"]
    out = [tvm_ffi.from_dlpack(np.empty((37, 43), "float32"))] if function != "main" else []
    with pytest.raises(Exception, match="compact"):
        loaded._machines.callee(function)(strided, *weights, *out)


def assertions(func: tirx.PrimFunc) -> dict[str, int]:
    """Count assertions by the argument that they are about."""
    found: dict[str, int] = {}

    def visit(check):
        text = "".join(part.value for part in check.message_parts)
        number = re.search(r"argument #(\d+)", text)
        key = number.group(1) if number else ""
        found[key] = found.get(key, 0) + 1

    structural_walk(func.body, (tirx.AssertStmt, visit))
    return found


def packed_source() -> tirx.PrimFunc:
    @T.prim_func(s_tir=True)
    def add(
        a: T.Buffer((5, 7), "float32"),
        b: T.Buffer((5, 7), "float32"),
        c: T.Buffer((5, 7), "float32"),
    ):
        T.func_attr({"global_symbol": "add", "tirx.is_scheduled": True})
        for i, j in T.grid(5, 7):
            with T.sblock("c"):
                y, x = T.axis.remap("SS", [i, j])
                c[y, x] = a[y, x] + b[y, x]

    return add


def packed_function(checked: list[int]) -> tirx.PrimFunc:
    target = Target("llvm")
    mod = tirx.transform.BindTarget(target.with_host(target))(
        tvm.IRModule({"add": with_checked(packed_source(), checked)})
    )
    lower, _, _ = tirx.get_tir_pipeline("tvm_fusion")
    with target:
        return DropArgumentChecks()(lower(mod))["add"]


def test_assertions_about_marked_parameters_go():
    before = assertions(packed_function([]))
    after = assertions(packed_function([0, 2]))
    assert set(before) == {"", "0", "1", "2"}
    assert min(before.values()) > 0
    assert before["0"] > 8
    assert after == {"": before[""], "1": before["1"]}


def test_nothing_is_marked_for_devices(monkeypatch):
    marks = []
    monkeypatch.setattr(
        "tvm_fusion.deploy.build.codegen.mark_checked_arguments", lambda *args: marks.append(args)
    )
    monkeypatch.setattr("tvm_fusion.deploy.build.codegen._parts", lambda *_: [{}])
    with compiling(tvm.IRModule({}), Target({"kind": "cuda", "arch": "sm_90a"}), "tvm_fusion"):
        pass
    assert marks == []
