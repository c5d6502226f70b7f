from __future__ import annotations

import numpy as np
import pytest
import tvm
from onnx import helper
from tvm.script import ir as I
from tvm.script import relax as R

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
