import numpy as np
import pytest
import tvm
from relax_modules import main_module
from tvm import relax, tirx
from tvm.script import ir as I
from tvm.script import relax as R

from tvm_fusion.frontend.normalize import BooleanArithmetic


def reduced(name, dtype="bool", keepdims=True):
    x = relax.Var("x", relax.TensorType([tirx.Var("n", "int64"), 3], dtype))

    def result(emit, *_):
        y = emit(getattr(relax.op, name)(x, [1], keepdims))
        return y

    return main_module([x], result)


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize(("name", "reference"), [("max", np.any), ("min", np.all)])
def test_any_and_all(name, reference, keepdims, run):
    x = np.array([[a, b, c] for a in (0, 1) for b in (0, 1) for c in (0, 1)], bool)
    result = run(BooleanArithmetic()(reduced(name, keepdims=keepdims)), x)
    assert result.dtype == bool
    np.testing.assert_array_equal(result, reference(x, axis=1, keepdims=keepdims))


@pytest.mark.parametrize(("name", "reference"), [("maximum", np.maximum), ("minimum", np.minimum)])
def test_pairs(name, reference, run):
    choose = getattr(R, name)

    @I.ir_module
    class Pairs:
        @R.function
        def main(x: R.Tensor(("n",), "bool"), y: R.Tensor(("n",), "bool")) -> R.Tensor(
            ("n",), "bool"
        ):
            with R.dataflow():
                z = choose(x, y)
                R.output(z)
            return z

    x, y = np.array([0, 0, 1, 1], bool), np.array([0, 1, 0, 1], bool)
    result = run(BooleanArithmetic()(Pairs), x, y)
    np.testing.assert_array_equal(result, reference(x, y))


def test_other_types_stay():
    before = reduced("max", "float32")
    assert BooleanArithmetic()(before).same_as(before)


def test_tvm_still_needs_it(run):
    """When this fails, TVM reduces booleans itself and the pass can go."""
    with pytest.raises(tvm.error.InternalError, match="Cannot decide min_value"):
        run(reduced("max"), np.ones((2, 3), bool))
