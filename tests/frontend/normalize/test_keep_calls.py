"""Calls for their effects stay; those in dataflow blocks and read ones are as they were."""

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

from tvm_fusion.device import parse
from tvm_fusion.frontend.normalize import KeepCalls

SHAPE = (3, 5)


def _double(x, y):
    y.copyfrom(x.numpy() * 2)
    return y


tvm.register_global_func("keep_calls.double", _double, override=True)


@I.ir_module
class Writing:
    @R.function
    def main(x: R.Tensor((3, 5), "float32"), y: R.Tensor((3, 5), "float32")) -> R.Tensor(
        (3, 5), "float32"
    ):
        h = R.exp(x)
        _ = R.call_pure_packed("keep_calls.double", h, y, ty_args=R.Tensor((3, 5), "float32"))
        return y


@I.ir_module
class Callback:
    @R.function
    def main(
        x: R.Tensor((3, 5), "float32"),
        tell: R.Callable([R.Tensor((3, 5), "float32")], R.Tuple([])),
    ):
        h = R.add(R.exp(x), x)
        _ = tell(h)
        return R.tuple()


@I.ir_module
class Read:
    @R.function
    def main(x: R.Tensor((3, 5), "float32")) -> R.Tensor((3, 5), "float32"):
        with R.dataflow():
            _a = R.call_pure_packed("keep_calls.double", x, x, ty_args=R.Tensor((3, 5), "float32"))
            h = R.exp(x)
            R.output(h)
        y = R.call_pure_packed("keep_calls.double", h, h, ty_args=R.Tensor((3, 5), "float32"))
        return y


def machine(mod):
    target = parse("cpu").tvm_target()
    options = {"relax_pipeline": "tvm_fusion", "tir_pipeline": "tvm_fusion"}
    return relax.VirtualMachine(tvm.compile(mod, target, **options), tvm.cpu())


@pytest.fixture
def x():
    return np.random.default_rng(3).standard_normal(SHAPE).astype("float32")


def test_a_packed_function_that_writes(x):
    y = tvm.runtime.tensor(np.zeros_like(x))
    machine(Writing)["main"](tvm.runtime.tensor(x), y)
    np.testing.assert_allclose(y.numpy(), 2 * np.exp(x.astype("float64")), rtol=1e-6)


def test_a_callback(x):
    told = []
    machine(Callback)["main"](tvm.runtime.tensor(x), tvm.runtime.convert(told.append))
    (h,) = told
    np.testing.assert_allclose(h.numpy(), np.exp(x.astype("float64")) + x, rtol=1e-6, atol=1e-6)


def test_read_calls_and_dataflow_blocks_stay():
    assert KeepCalls()(Read).same_as(Read)


@pytest.mark.parametrize("mod", [Writing, Callback])
def test_modules_stay_well_formed(mod):
    once = KeepCalls()(mod)
    assert not once.same_as(mod)
    relax.analysis.well_formed(once)
    assert KeepCalls()(once).same_as(once)
