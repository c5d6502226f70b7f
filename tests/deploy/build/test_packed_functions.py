"""An artifact runs where TVM's runtime is, or says at once what is missing there."""

import numpy as np
import onnx
import pytest
import tvm
from tvm.script import ir as I
from tvm.script import relax as R

import tvm_fusion
from benchmarks.runtime_alone import RuntimeAlone
from tvm_fusion.deploy.build.bundle import bundle
from tvm_fusion.errors import UserError


@pytest.fixture(scope="module")
def alone():
    process = RuntimeAlone()
    yield process
    process.close()


def compiled(text):
    return tvm_fusion.compile(
        onnx.parser.parse_model('<ir_version: 10, opset_import: ["": 18]> ' + text)
    )


def test_top_k(alone, tmp_path):
    artifact = compiled(
        "g (float[3,70] x) => (float[3,5] v, int64[3,5] i) "
        "{ k = Constant<value_ints=[5]>() v, i = TopK(x, k) }"
    )
    x = np.random.default_rng().permutation(210).reshape(3, 70).astype("float32")
    found = alone.run(artifact.export(tmp_path / "a"), {"x": x})
    order = np.argsort(-x)[:, :5]
    np.testing.assert_array_equal(found["i"], order)
    np.testing.assert_array_equal(found["v"], np.take_along_axis(x, order, 1))


@pytest.mark.slow
def test_non_max_suppression(alone, tmp_path):
    artifact = compiled(
        "g (float[1,4,4] b, float[1,2,4] s) => (int64[n,3] y) { m = Constant<value_ints=[3]>() "
        "t = Constant<value_floats=[0.5]>() y = NonMaxSuppression(b, s, m, t) }"
    )
    boxes = np.array([[[0, 0, 1, 1], [0, 0.1, 1, 1], [0, 2, 1, 3], [0, 4, 1, 5]]], "float32")
    scores = np.array([[[0.9, 0.8, 0.7, 0.6], [0.1, 0.9, 0.2, 0.3]]], "float32")
    (found,) = alone.run(artifact.export(tmp_path / "a"), {"b": boxes, "s": scores}).values()
    wanted = [[0, 0, 0], [0, 0, 2], [0, 0, 3], [0, 1, 1], [0, 1, 3], [0, 1, 2]]
    assert sorted(found.tolist()) == sorted(wanted)


def calling(name):
    @I.ir_module
    class Module:
        @R.function
        def main(x: R.Tensor((3, 7), "float32")) -> R.Tensor((3, 7), "float32"):
            with R.dataflow():
                y = R.call_dps_packed(name, (x,), out_ty=R.Tensor((3, 7), "float32"))
                R.output(y)
            return y

    return Module


def test_functions_of_the_compiler_are_refused():
    with pytest.raises(
        UserError, match=r"calls TVM's function relax\.run\.unique, which only a proc"
    ):
        tvm_fusion.compile(calling("relax.run.unique"))


def test_functions_of_the_application_are_asked_for(alone, tmp_path):
    artifact = tvm_fusion.compile(calling("application.negated"))
    assert artifact.manifest["packed_functions"] == ["application.negated"]
    folder = artifact.export(tmp_path / "a")
    sentence = r"calls the packed function 'application\.negated', which this process does not have"
    with pytest.raises(UserError, match=sentence):
        tvm_fusion.load(folder)
    with pytest.raises(UserError, match=r"'application\.negated', which the runner does not have"):
        bundle(folder, tmp_path / "b")

    def negated(x, y):
        y.copyfrom(-x.numpy())

    tvm.register_global_func("application.negated", negated)
    x = np.random.default_rng().random((3, 7), dtype="float32")
    (y,) = tvm_fusion.load(folder)(x=x).values()
    np.testing.assert_array_equal(y, -x)
