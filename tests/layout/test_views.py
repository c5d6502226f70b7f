"""Reshapes become views, those that are outputs included."""

import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from tvm_fusion import transform
from tvm_fusion.device import parse


@pytest.fixture(scope="module")
def target():
    return parse("cpu").tvm_target()


def plan(mod, target):
    with target:
        return transform.PlanLayout()(transform.FuseOperators()(transform.Legalize()(mod)))


def kernels(mod):
    return [gvar.name_hint for gvar, f in mod.functions.items() if isinstance(f, tirx.PrimFunc)]


@I.ir_module
class OutputReshape:
    @R.function
    def main(x: R.Tensor((6, 35), "float32")) -> R.Tensor((35, 6), "float32"):
        with R.dataflow():
            h = R.nn.softmax(x)
            y = R.reshape(h, R.shape([35, 6]))
            R.output(y)
        return y


@I.ir_module
class InputReshape:
    @R.function
    def main(x: R.Tensor(("n", 6), "float32")) -> R.Tensor(("n * 2", 3), "float32"):
        n = T.int64()
        with R.dataflow():
            y = R.reshape(x, R.shape([n * 2, 3]))
            R.output(y)
        return y


@pytest.mark.parametrize(("mod", "left"), [(OutputReshape, ["softmax"]), (InputReshape, [])])
def test_output_reshapes_launch_nothing(target, mod, left):
    planned = plan(mod, target)
    assert kernels(planned) == left
    assert "R.reshape" in planned["main"].script() or "vm.builtin" in planned["main"].script()


def test_stock_tvm_copies_an_output_reshape(target):
    """Fails when TVM makes views of output reshapes itself: then AliasOutputs can go."""
    with target:
        mod = transform.FuseOperators()(transform.Legalize()(OutputReshape))
        mod = relax.transform.RewriteDataflowReshape()(mod)
    assert "reshape" in kernels(mod)


def test_results_are_right(target):
    x = np.random.default_rng(3).standard_normal((5, 6), "float32")
    executable = tvm.compile(
        InputReshape, target, relax_pipeline="tvm_fusion", tir_pipeline="tvm_fusion"
    )
    y = relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(x)).numpy()
    np.testing.assert_array_equal(y, x.reshape(10, 3))


def test_stock_tvm_dies_of_a_kernel_without_blocks():
    """When this passes no more, the module may be shown to TVM's pass as it is."""

    @T.prim_func
    def twice(a: T.Buffer((16,), "float32"), b: T.Buffer((16,), "float32")):
        for i in range(16):
            b[i] = a[i] * T.float32(2)

    with pytest.raises(tvm.error.InternalError):
        relax.analysis.has_reshape_pattern(twice)
