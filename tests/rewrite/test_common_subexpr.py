"""Equal bindings become one; where all differ, TVM's pass is not asked."""

import numpy as np
import pytest
import tvm
import tvm_ffi
from relax_modules import main_module
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

from tvm_fusion.rewrite.simplify import CommonSubexpr


def _products(*weights: np.ndarray) -> tvm.IRModule:
    """Multiply one input by each weight, and concatenate."""
    x = relax.Var("x", R.Tensor((3, weights[0].shape[0]), "float32"))

    def result(emit, *_):
        found = [emit(relax.op.matmul(x, relax.const(w))) for w in weights]
        return relax.op.concat(found, 1)

    return main_module([x], result)


def _bindings(mod: tvm.IRModule) -> int:
    tidy = [relax.transform.CanonicalizeBindings(), relax.transform.DeadCodeElimination()]
    func = tvm.ir.transform.Sequential([CommonSubexpr(), *tidy])(mod)["main"]
    return sum(len(block.bindings) for block in func.body.blocks)


def test_products_by_equal_constants_become_one():
    weight = np.random.default_rng(0).standard_normal((4, 5)).astype("float32")
    assert _bindings(_products(weight, weight.copy(), weight + 1)) == 3


@pytest.mark.parametrize("differs", ["data", "attributes"])
def test_a_module_whose_bindings_differ_is_left_alone(differs):
    weight = np.zeros((40, 50), "float32")
    mod = _products(weight, weight + 1)
    if differs == "attributes":

        @I.ir_module
        class Sums:
            @R.function
            def main(x: R.Tensor((3, 4))) -> R.Tuple(R.Tensor((3,)), R.Tensor((4,))):
                with R.dataflow():
                    a = R.sum(x, axis=[1])
                    b = R.sum(x, axis=[0])
                    out = (a, b)
                    R.output(out)
                return out

        mod = Sums
    assert CommonSubexpr()(mod).same_as(mod)


def test_constants_that_differ_between_the_samples_stay_apart():
    weight = np.zeros((40, 50), "float32")
    other = weight.copy()
    other.reshape(-1)[1] = 1
    assert _bindings(_products(weight, other)) == 3


def test_bindings_inside_of_a_branch_are_seen():
    @I.ir_module
    class Branch:
        @R.function
        def main(x: R.Tensor((3,)), flag: R.Tensor((), "bool")) -> R.Tensor((3,)):
            if flag:
                a = R.exp(x)
                b = R.exp(x)
                out = R.add(a, b)
            else:
                out = x
            return out

    expected = relax.transform.EliminateCommonSubexpr()(Branch)
    assert not tvm_ffi.structural_equal(expected, Branch)
    tvm.ir.assert_structural_equal(CommonSubexpr()(Branch), expected)
