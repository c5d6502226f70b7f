"""Extrema of whole tensors on a GPU: split in two where one block would take long, never else."""

import numpy as np
import pytest
import tvm
from cpu_programs import compiled
from group_kernels import tensor
from relax_modules import main_module
from tvm import relax, tirx

from tvm_fusion.device import parse
from tvm_fusion.ecg.legalization.legalize import SplitLongExtrema

op = relax.op


def reduced(shape, operator="max", axis=None, keepdims=False, dtype="float32", target="cuda:sm_90"):
    x = tensor("x", *shape, dtype=dtype)

    def body(emit, x):
        return emit(getattr(op, operator)(x, axis, keepdims))

    mod = main_module([x], body)
    with parse(target).tvm_target():
        return mod, SplitLongExtrema()(mod)


def operators(mod):
    bindings = [b for block in mod["main"].body.blocks for b in block.bindings]
    return [b.value.op.name for b in bindings if isinstance(b.value, relax.Call)]


@pytest.mark.parametrize(
    ("shape", "axis", "keepdims"),
    [((1, 129, 131), None, False), ((129, 131), [0, 1], True), ((2, 129, 131), [1, -1], False)],
)
@pytest.mark.parametrize("operator", ["max", "min"])
def test_two_steps_are_the_same(operator, shape, axis, keepdims):
    before, after = reduced(shape, operator, axis, keepdims)
    assert len(operators(before)) == 1
    assert operators(after) == [f"relax.{operator}"] * 2
    assert str(after["main"].ret_ty) == str(before["main"].ret_ty)
    with parse("cuda:sm_90").tvm_target():
        tvm.ir.assert_structural_equal(SplitLongExtrema()(after), after)
    x = np.random.default_rng(0).standard_normal(shape).astype("float32")
    x.reshape(-1)[7] = np.inf if operator == "min" else -np.inf
    func = after["main"]

    def body(x):
        values = {func.params[0]: x}
        first, second = (b.value for b in func.body.blocks[0].bindings[:2])
        rows = getattr(op, operator)(values[first.args[0]], first.attrs.axis, first.attrs.keepdims)
        return getattr(op, operator)(rows, second.attrs.axis, second.attrs.keepdims)

    found = compiled([tensor("x", *shape)], body)(x)
    places = None if axis is None else tuple(axis)
    expected = getattr(np, operator)(x, axis=places, keepdims=keepdims)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((129, 131), {"target": "cpu"}),
        ((129, 131), {"axis": [1]}),  # one of many results
        ((129, 131), {"axis": [0]}),  # rows are not reduced
        ((64, 64), {}),  # few terms
        ((16384, 3), {}),  # short rows
        ((1, 16384), {}),  # one row
        ((9, 129, 131), {"axis": [1, 2]}),  # results enough
        ((129, 131), {"operator": "sum"}),  # which is not exact in another order
        ((tirx.Var("n", "int64"), 131), {}),
    ],
)
def test_all_others_stay(shape, options):
    before, after = reduced(shape, **options)
    tvm.ir.assert_structural_equal(after, before)
