import numpy as np
import pytest
import tvm
from onnx import helper
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from tvm_fusion.config import FusionConfig
from tvm_fusion.frontend import import_model
from tvm_fusion.frontend.normalize import ClampTake
from tvm_fusion.signature import DimRange

F32 = "float32"


def module(mode):
    @I.ir_module
    class Lookup:
        @R.function
        def main(x: R.Tensor((5, 3), F32), i: R.Tensor((2, "n"), "int64")) -> R.Tensor(
            (2, "n", 3), F32
        ):
            with R.dataflow():
                y = R.take(x, i, axis=0, mode=mode)
                R.output(y)
            return y

    return Lookup


def test_before_and_expected():
    tvm.ir.assert_structural_equal(ClampTake()(module("fast")), module("clip"))


@pytest.mark.parametrize("mode", ["clip", "wrap", "nan"])
def test_other_modes_stay(mode):
    before = module(mode)
    assert ClampTake()(before).same_as(before)


def test_indices_out_of_range_stay_in_the_table(onnx_model, run, rng, capfd):
    table = rng.standard_normal((5, 3), dtype=F32)
    model = onnx_model(
        [helper.make_node("Gather", ["table", "i"], ["y"])],
        {"i": ("int64", ["n"])},
        {"y": (F32, ["n", 3])},
        {"table": table},
    )
    mod = import_model(model, FusionConfig(dims={"n": DimRange(1, 9)})).mod
    result = run(mod, np.array([0, 4, -1, 10**6, -(10**6)]))
    np.testing.assert_array_equal(result, table[[0, 4, 4, 4, 0]])
    assert "Fast mode" not in capfd.readouterr().err


def one_row(index, mode):
    @I.ir_module
    class Lookup:
        @R.function
        def main(x: R.Tensor((5, 3), F32)) -> R.Tensor((3,), F32):
            with R.dataflow():
                y = R.take(x, index, axis=0, mode=mode)
                R.output(y)
            return y

    return Lookup


def test_an_index_in_range_becomes_part_of_the_operator():
    before = one_row(R.const(2, "int64"), "fast")
    tvm.ir.assert_structural_equal(ClampTake()(before), one_row(R.prim_value(2), "fast"))


@pytest.mark.parametrize("index", [-1, 5])
def test_an_index_out_of_range_is_clamped(index):
    before = one_row(R.const(index, "int64"), "fast")
    tvm.ir.assert_structural_equal(ClampTake()(before), one_row(R.const(index, "int64"), "clip"))


def rows(indices, mode="fast"):
    @I.ir_module
    class Lookup:
        @R.function
        def main(x: R.Tensor((5, 3), F32)) -> R.Tensor(None, F32, ndim=2):
            with R.dataflow():
                a = R.take(x, R.const(indices, "int64"), axis=0, mode=mode)
                y = R.exp(a)
                R.output(y)
            return y

    return Lookup


@pytest.mark.parametrize(
    ("indices", "left"),
    [
        ([0, 1, 2, 3, 4], ["exp"]),
        ([0, 1, 2, 3], ["take", "exp"]),
        ([0, 1, 2, 3, 4, 5], ["take", "exp"]),
        ([4, 3, 2, 1, 0], ["take", "exp"]),
    ],
)
@pytest.mark.parametrize("mode", ["fast", "clip"])
def test_all_indices_in_order_take_the_table_itself(indices, left, mode, operators):
    assert operators(ClampTake()(rows(indices, mode))["main"]) == left


@pytest.mark.parametrize(("axis", "left"), [(0, ["exp"]), (1, ["arange", "take", "exp"])])
def test_an_unknown_number_of_indices_in_order(axis, left, operators):
    @I.ir_module
    class Lookup:
        @R.function
        def main(x: R.Tensor(("n", "m"), F32)) -> R.Tensor(None, F32, ndim=2):
            n = T.int64()
            with R.dataflow():
                i = R.arange(0, n, 1, "int64")
                a = R.take(x, i, axis=axis, mode="fast")
                y = R.exp(a)
                R.output(y)
            return y

    assert operators(ClampTake()(Lookup)["main"]) == left
