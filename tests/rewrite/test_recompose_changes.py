"""Recompositions are told like laws."""

import pytest
from relax_modules import main_module
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

from tvm_fusion import transform
from tvm_fusion.device import parse
from tvm_fusion.rewrite.egraph.changes import noting
from tvm_fusion.rewrite.recompose.patterns import PATTERNS
from tvm_fusion.rewrite.recompose.recompose import equation


@I.ir_module
class Softmax:
    @R.function
    def main(x: R.Tensor((64, 128), "float32")) -> R.Tensor((64, 128), "float32"):
        with R.dataflow():
            m = R.max(x, axis=[-1], keepdims=True)
            e = R.exp(R.subtract(x, m))
            s = R.sum(e, axis=[-1], keepdims=True)
            y = R.divide(e, s)
            R.output(y)
        return y


def test_what_is_recomposed():
    with parse("cpu").tvm_target(), noting() as noted:
        transform.Rewrite()(Softmax)
    change = noted.changes[0]
    assert (change.function, change.variable, change.rules) == ("main", "y", ("softmax",))
    assert (change.before, change.after) == equation(PATTERNS[1])
    assert change.gain is not None
    assert noted.uses["softmax"].fired == noted.uses["softmax"].chosen == 1


def test_what_is_switched_off():
    with parse("cpu").tvm_target(), noting() as noted:
        after = transform.Rewrite(without=["softmax"])(Softmax)
    assert "softmax" not in noted.uses
    assert "R.nn.softmax(" not in after["main"].script()


def test_why_something_is_no_softmax():
    x = relax.Var("x", relax.TensorType((64, 128), "float32"))

    def result(emit, *_):
        e = emit(relax.op.exp(x))
        s = emit(relax.op.sum(e, axis=[0, 1], keepdims=True))
        return relax.op.divide(e, s)

    with parse("cpu").tvm_target(), noting() as noted:
        transform.Rewrite()(main_module([x], result))
    use = noted.uses["softmax"]
    assert (use.tried, use.fired) == (1, 0)
    (sentence,) = use.refused
    assert "softmax" in sentence


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda pattern: pattern.name)
def test_every_pattern_has_an_equation(pattern):
    assert all(equation(pattern))
