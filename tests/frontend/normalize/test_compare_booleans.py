# TVMScript finds variables of annotations only where those are not evaluated.
from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm.script import ir as I
from tvm.script import relax as R

from tvm_fusion.frontend.normalize import CompareBooleans


def module(name, dtype="bool"):
    compare = getattr(R, name)

    @I.ir_module
    class Compare:
        @R.function
        def main(x: R.Tensor(("n",), dtype), y: R.Tensor(("n",), dtype)) -> R.Tensor(
            ("n",), "bool"
        ):
            with R.dataflow():
                z = compare(x, y)
                R.output(z)
            return z

    return Compare


def test_before_and_expected():
    @I.ir_module
    class Expected:
        @R.function
        def main(x: R.Tensor(("n",), "bool"), y: R.Tensor(("n",), "bool")) -> R.Tensor(
            ("n",), "bool"
        ):
            with R.dataflow():
                lv = R.logical_xor(x, y)
                z = R.logical_not(lv)
                R.output(z)
            return z

    tvm.ir.assert_structural_equal(CompareBooleans()(module("equal")), Expected)


@pytest.mark.parametrize(("name", "reference"), [("equal", np.equal), ("not_equal", np.not_equal)])
def test_all_pairs(name, reference, run):
    x, y = np.array([0, 0, 1, 1], bool), np.array([0, 1, 0, 1], bool)
    result = run(CompareBooleans()(module(name)), x, y)
    np.testing.assert_array_equal(result, reference(x, y))


def test_other_types_stay():
    before = module("equal", "float32")
    assert CompareBooleans()(before).same_as(before)


def test_tvm_still_needs_it(run):
    """When this fails, TVM compares booleans itself and the pass can go."""
    flags = np.array([0, 1], bool)
    with pytest.raises(tvm.error.InternalError, match="FCmp"):
        run(module("equal"), flags, flags)
