import math

import numpy as np
import pytest
from relax_modules import main_module
from tvm import relax, tirx

import tvm_fusion
from tvm_fusion.frontend.normalize import ClipIntegers

CASES = [
    ("int64", 0, math.inf),
    ("int64", -math.inf, 4),
    ("int32", -1.5, 2.5),
    ("int8", -3, 1e30),
    ("uint8", -2, 3),
]


def module(dtype, low, high):
    x = relax.Var("x", relax.TensorType((9,), dtype))

    def result(emit, *_):
        y = emit(relax.op.clip(x, relax.prim_value(low), relax.prim_value(high)))
        return relax.op.add(y, x)

    return main_module([x], result)


@pytest.mark.parametrize(("dtype", "low", "high"), CASES)
def test_limits(tmp_path, dtype, low, high):
    x = np.arange(-4, 5).astype(dtype)
    mod = module(dtype, low, high)
    program = tvm_fusion.load(tvm_fusion.compile(mod, "cpu").export(tmp_path / "a"))
    (result,) = program.run({"x": x}).values()
    clipped = np.clip(x.astype("float64"), np.ceil(low), np.floor(high))
    np.testing.assert_array_equal(result, clipped.astype(dtype) + x)


def test_large_integers_are_kept():
    limits = tirx.IntImm("int64", 2**53 + 1), tirx.IntImm("int64", 2**62)
    mod = module("int64", *limits)
    assert ClipIntegers()(mod).same_as(mod)


def test_what_limits_nothing_is_dropped():
    func = ClipIntegers()(module("int8", -math.inf, 300))["main"]
    names = [b.value.op.name for block in func.body.blocks for b in block.bindings]
    assert names == ["relax.add"]
