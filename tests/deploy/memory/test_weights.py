from types import SimpleNamespace

import numpy as np
import pytest
import tvm
from tvm import relax

from tvm_fusion.deploy.build.build import store
from tvm_fusion.deploy.memory.weights import lift_constants

LARGE = np.random.default_rng(0).standard_normal((16, 32)).astype("float32")
SMALL = np.arange(32, dtype="float32")


def module(returned=None, name="main"):
    """``x @ LARGE + SMALL``, and a constant that is returned as it is."""
    builder = relax.BlockBuilder()
    with builder.function(name):
        x = relax.Var("x", relax.TensorType([4, 16], "float32"))
        with builder.dataflow():
            large = relax.const(LARGE)
            y = builder.emit(relax.op.add(relax.op.matmul(x, large), relax.const(SMALL)))
            y = builder.emit(relax.op.add(y, relax.op.sum(large)))
            if returned is not None:
                y = relax.Tuple([y, relax.const(returned)])
            y = builder.emit_output(y)
        builder.emit_func_output(y, [x])
    return builder.get()


def test_a_constant_becomes_one_parameter_however_often_it_is_used():
    mod = module()
    lifted = lift_constants(mod, 1024)
    assert len(lifted.mod["main"].params) == 2
    assert lifted.mod["main"].attrs["num_input"] == 1
    np.testing.assert_array_equal(lifted.weights["main"][0].value.numpy(), LARGE)
    assert len(mod["main"].params) == 1


def test_without_a_limit_all_but_scalars_are_lifted():
    lifted = lift_constants(module())
    assert [const.value.shape for const in lifted.weights["main"]] == [(16, 32), (32,)]


@pytest.mark.parametrize("returned", [SMALL[:3], np.array(4.0, "float32")])
def test_a_constant_that_is_returned_is_lifted_whatever_its_size(returned):
    lifted = lift_constants(module(returned), 1024)
    assert [const.value.shape for const in lifted.weights["main"]] == [LARGE.shape, returned.shape]


def test_lifting_twice_is_lifting_once():
    lifted = lift_constants(module(), 1024)
    again = lift_constants(lifted.mod, 1024)
    assert again.weights == {}
    tvm.ir.assert_structural_equal(again.mod, lifted.mod)


def test_private_functions_and_modules_without_constants_stay():
    builder = relax.BlockBuilder()
    with builder.function("main"):
        x = relax.Var("x", relax.TensorType([4], "float32"))
        with builder.dataflow():
            y = builder.emit_output(relax.op.exp(x))
        builder.emit_func_output(y, [x])
    mod = builder.get()
    tvm.ir.assert_structural_equal(lift_constants(mod).mod, mod)
    private = module()
    private.update_func(
        private.get_global_var("main"), private["main"].without_attr("global_symbol")
    )
    tvm.ir.assert_structural_equal(lift_constants(private).mod, private)


def test_equal_weights_of_other_names_are_stored_once():
    weights = {"one": LARGE, "other": LARGE.copy(), "double": 2 * LARGE, "half": SMALL}
    prepared = SimpleNamespace(weights=weights, packings={})
    stored, used = store({"cpu": prepared}, {})
    assert list(stored) == ["one", "double", "half"]
    assert {name: weight.label for name, weight in used["cpu"].items()} == {
        "one": "one",
        "other": "one",
        "double": "double",
        "half": "half",
    }
