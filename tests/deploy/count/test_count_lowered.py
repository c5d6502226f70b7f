"""A module that is lowered already is counted as it is."""

import pytest
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

from tvm_fusion.deploy.count import count


@I.ir_module
class Chain:
    @R.function
    def main(x: R.Tensor((8, 64), "float32")) -> R.Tensor((8, 64), "float32"):
        with R.dataflow():
            a = R.nn.softmax(x)
            b = R.nn.softmax(a)
            y = R.nn.softmax(b)
            R.output(y)
        return y


@pytest.mark.parametrize("graph", [False, True])
def test_lowered_modules_are_not_lowered_again(monkeypatch, graph):
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_90"}, host="llvm")
    config = {"relax.backend.use_cuda_graph": graph}
    with tvm.transform.PassContext(config=config):
        lowered = relax.get_pipeline("tvm_fusion", target=target)(Chain)

    def again(name):
        raise AssertionError(f"{name} applied again")

    monkeypatch.setattr(relax, "get_pipeline", again)
    assert count(lowered, target, tir_pipeline="tvm_fusion").kernels == 1
