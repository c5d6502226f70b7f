"""Python functions of a module are refused by name; the rest of such a class is a module."""

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax.base_py_module import BasePyModule
from tvm.script import ir as I
from tvm.script import relax as R

import tvm_fusion
from tvm_fusion.errors import UserError


@I.ir_module
class Mixed(BasePyModule):
    @I.pyfunc
    def soften(self, x):
        return x

    @R.function
    def main(x: R.Tensor((5,), "float32")) -> R.Tensor((5,), "float32"):
        h = R.exp(x)
        y = R.call_py_func("sharpen", (h,), out_ty=R.Tensor((5,), "float32"))
        return y


@I.ir_module
class Plain(BasePyModule):
    @R.function
    def main(x: R.Tensor((5,), "float32")) -> R.Tensor((5,), "float32"):
        with R.dataflow():
            y = R.exp(R.add(x, x))
            R.output(y)
        return y


@pytest.mark.parametrize("of", [lambda m: m, lambda m: m.ir_module], ids=["class", "IRModule"])
def test_python_functions_are_named(of):
    with pytest.raises(UserError, match="needs Python functions soften, sharpen; expected"):
        tvm_fusion.compile(of(Mixed))


def test_an_instance_is_its_module():
    instance = BasePyModule(Plain.ir_module, tvm.cpu(), tvm.target.Target("llvm"))
    artifact = tvm_fusion.compile(instance)
    (function,) = artifact.manifest["functions"].values()
    assert function["kernels"] == 1


def test_the_named_pipeline_leaves_calls_to_the_running_process(rng):
    calls = []

    def sharpen(arguments):
        (x,) = arguments
        calls.append(x)
        return tvm.runtime.tensor(x.numpy() * 3)

    mod = relax.get_pipeline("tvm_fusion", target=tvm.target.Target("llvm"))(Mixed.ir_module)
    built = relax.build(mod, tvm.target.Target("llvm"), relax_pipeline=None)
    tvm.get_global_func("vm.builtin.register_py_func")("sharpen", tvm.runtime.convert(sharpen))
    x = rng.standard_normal(5, dtype="float32")
    y = relax.VirtualMachine(built, tvm.cpu())["main"](tvm.runtime.tensor(x))
    np.testing.assert_allclose(y.numpy(), 3 * np.exp(x), rtol=1e-5)
    assert len(calls) == 1
