"""Masks that positions decide: one of its own for each softmax."""

import numpy as np
import pytest
import tvm
from relax_modules import main_module
from tvm import relax, tirx

from tvm_fusion.device import parse
from tvm_fusion.rewrite.products.position_masks import PositionMasks

op = relax.op
CPU, CUDA = parse("cpu:cascadelake"), parse("cuda:sm_90a")
n = tirx.Var("n", "int64")


def layers(position_of=1, is_chosen=False):
    """Two softmax of scores that one mask hides by position."""
    scores = [relax.Var(f"s{i}", relax.TensorType((4, n, 128), "float32")) for i in range(2)]
    position = relax.Var("position", relax.TensorType((position_of,), "int64"))

    def body(emit, *given):
        *scores, position = given
        first = emit(op.take(position, relax.const(0, "int64"), axis=0))
        row = emit(op.add(emit(op.arange(0, n, 1, dtype="int64")), first))
        seen = emit(op.less_equal(relax.const(np.arange(128)), emit(op.reshape(row, (n, 1)))))
        low = relax.const(-np.inf, "float32")
        mask = seen if is_chosen else emit(op.where(seen, relax.const(0.0), low))
        found = []
        for s in scores:
            s = emit(op.where(mask, s, low) if is_chosen else op.add(s, mask))
            found.append(emit(op.nn.softmax(s)))
        return op.add(*found)

    return main_module([*scores, position], body)


def count(mod, name):
    found = []
    relax.analysis.post_order_visit(mod["main"], found.append)
    return sum(isinstance(x, relax.Call) and x.op == tvm.ir.Op.get(f"relax.{name}") for x in found)


@pytest.mark.parametrize("is_chosen", [False, True])
def test_each_softmax_compares_positions(is_chosen):
    with CPU.tvm_target():
        found = PositionMasks()(layers(is_chosen=is_chosen))
        again = PositionMasks()(found)
    assert count(found, "less_equal") == count(found, "arange") == 2
    assert count(found, "take") == 1  # a position is read as it is
    tvm.ir.assert_structural_equal(again, found)


def test_other_masks_stay_shared():
    """On a GPU; and of more elements than positions are."""
    mod = layers()
    with CUDA.tvm_target():
        tvm.ir.assert_structural_equal(PositionMasks()(mod), mod)
    x = relax.Var("x", relax.TensorType((4, n, 128), "float32"))
    mask = relax.Var("mask", relax.TensorType((n, 128), "float32"))

    def body(emit, x, mask):
        hidden = emit(op.less(mask, relax.const(0.5)))
        added = emit(op.where(hidden, relax.const(-np.inf, "float32"), relax.const(0.0)))
        found = [emit(op.nn.softmax(emit(op.add(s, added)))) for s in (x, emit(op.exp(x)))]
        return op.add(*found)

    mod = main_module([x, mask], body)
    with CPU.tvm_target():
        tvm.ir.assert_structural_equal(PositionMasks()(mod), mod)
