"""Weights of private functions lie in the weights file, like all others."""

import numpy as np
import pytest
import tvm
from onnx import numpy_helper
from onnx.parser import parse_model
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

import tvm_fusion
from tvm_fusion.deploy.memory.weights import lift_constants

SCAN = """<ir_version: 9, opset_import: ["" : 18]>
graph (float[2, 32] h, float[200, 2, 32] x, bool flag) => (float[2, 32] last, float[2, 32] other) {
    last = Scan <num_scan_inputs = 1, body = step (float[2, 32] s, float[2, 32] t)
        => (float[2, 32] n) {
        p = MatMul (s, w)
        q = Add (p, t)
        n = Tanh (q)
    }> (h, x)
    other = If (flag) <then_branch = left () => (float[2, 32] l) { l = MatMul (h, w) },
        else_branch = right () => (float[2, 32] r) { r = MatMul (last, w) }>
}"""


@pytest.mark.slow
def test_loops_and_branches_share_weights_of_the_file(tmp_path):
    rng = np.random.default_rng(1)
    w = (rng.standard_normal((32, 32)) / 6).astype("float32")
    model = parse_model(SCAN)
    model.graph.initializer.append(numpy_helper.from_array(w, "w"))
    artifact = tvm_fusion.compile(model, "cpu")
    assert artifact.manifest["functions"]["main"]["weights"] == ["w"]
    program = tvm_fusion.load(artifact.export(tmp_path / "model"))
    h, x = (rng.standard_normal(s).astype("float32") for s in ((2, 32), (200, 2, 32)))
    state = h.astype("float64")
    for part in x:
        state = np.tanh(state @ w + part)
    for flag in (True, False):
        found = program.run({"h": h, "x": x, "flag": np.array(flag)})
        np.testing.assert_allclose(found["last"], state, rtol=1e-4, atol=1e-5)
        wanted = (h if flag else state) @ w.astype("float64")
        np.testing.assert_allclose(found["other"], wanted, rtol=1e-4, atol=1e-5)


def test_functions_that_are_values_keep_their_constants():
    @I.ir_module
    class Module:
        @R.function(private=True)
        def called(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
            return R.add(x, R.const([1.0, 2.0, 3.0, 4.0], "float32"))

        @R.function(private=True)
        def passed(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
            return R.add(x, R.const([5.0, 6.0, 7.0, 8.0], "float32"))

        @R.function
        def main(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
            cls = Module
            y = cls.called(x)
            f = cls.passed
            return f(y)

    lifted = lift_constants(Module)
    assert [len(lifted.mod[name].params) for name in ("called", "passed", "main")] == [2, 1, 2]
    executable = tvm.compile(relax.get_pipeline("zero")(lifted.mod), "llvm")
    weights = [const.value for const in lifted.weights["main"]]
    found = relax.VirtualMachine(executable, tvm.cpu())["main"](
        tvm.runtime.tensor(np.zeros(4, "float32")), *weights
    )
    np.testing.assert_array_equal(found.numpy(), [6, 8, 10, 12])
