"""The search as a pass: what it leaves alone, and what is equal but written in two ways."""

import tvm
from relax_modules import main_module
from tvm import relax

from tvm_fusion.device import parse
from tvm_fusion.rewrite.search.search import SearchEquivalents

op = relax.op
TARGET = parse("cpu:x86-64-v3").tvm_target()


def module(shape, body):
    names = [relax.Var(name, relax.TensorType(shape, "float32")) for name in "ab"]
    return main_module(names, body)


def operators(mod):
    bindings = mod["main"].body.blocks[0].bindings
    return [b.value.op.name for b in bindings if isinstance(b.value, relax.Call)]


def test_a_sum_in_either_order_is_computed_once():
    def twice(emit, a, b):
        return op.multiply(emit(op.exp(emit(op.add(a, b)))), emit(op.tanh(emit(op.add(b, a)))))

    with TARGET:
        found = SearchEquivalents()(module((33, 65), twice))
    assert sorted(operators(found)) == ["relax.add", "relax.exp", "relax.multiply", "relax.tanh"]


def test_what_cannot_be_cheaper_stays_the_same_object():
    mod = module((33, 65), lambda emit, a, b: op.tanh(emit(op.add(a, b))))
    with TARGET:
        found = SearchEquivalents()(mod)
    tvm.ir.assert_structural_equal(found, mod)
    assert found["main"].same_as(mod["main"])
