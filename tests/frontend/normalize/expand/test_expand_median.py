import numpy as np
import pytest
import tvm
from relax_modules import main_module
from tvm import relax, tirx
from tvm.script import ir as I
from tvm.script import relax as R

from tvm_fusion.frontend.normalize import ExpandMedian

F32 = "float32"


def module(shape, axis, keepdims):
    x = relax.Var("x", relax.TensorType(shape, F32))
    return main_module([x], relax.op.median(x, axis, keepdims))


def test_before_and_expected():
    @I.ir_module
    class Expected:
        @R.function
        def main(
            x: R.Tensor((3, 6), F32),
        ) -> R.Tuple(R.Tensor((3, 1), F32), R.Tensor((3, 1), "int64")):
            with R.dataflow():
                order = R.argsort(x, axis=1, dtype="int64")
                one = R.take(order, R.prim_value(2), axis=1)
                index = R.expand_dims(one, axis=1)
                value = R.gather_elements(x, index, axis=1)
                y = (value, index)
                R.output(y)
            return y

    after = ExpandMedian()(module((3, 6), [1], True))
    tvm.ir.assert_structural_equal(after, Expected)
    assert ExpandMedian()(after).same_as(after)


@pytest.mark.slow_beyond(12)
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axis", [None, [0], [1], [-1]])
@pytest.mark.parametrize("sizes", [(3, 5, 4), (2, 1, 7)])
def test_values_and_positions(sizes, axis, keepdims, run, rng):
    n = tirx.Var("n", "int64")
    x = rng.normal(size=sizes).astype(F32)
    found = run(ExpandMedian()(module((sizes[0], n, sizes[2]), axis, keepdims)), x)
    middle = (x.size if axis is None else x.shape[axis[0]]) - 1 >> 1
    right = np.sort(x.reshape(-1) if axis is None else x, 0 if axis is None else axis[0])
    right = right[middle] if axis is None else np.take(right, [middle], axis[0])
    if axis is None:
        np.testing.assert_array_equal(np.ravel(found), [right])
        return
    value, position = found
    positions = np.reshape(position, right.shape)
    np.testing.assert_array_equal(np.reshape(value, right.shape), right)
    np.testing.assert_array_equal(np.take_along_axis(x, positions, axis[0]), right)
    assert value.ndim == position.ndim == (3 if keepdims else 2)
