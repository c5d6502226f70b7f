"""The rewriting stage: modules before and after."""

import tvm
from tvm.script import ir as I
from tvm.script import relax as R

from tvm_fusion import transform


def check(before, expected):
    after = transform.Rewrite()(before)
    tvm.ir.assert_structural_equal(after, expected)
    tvm.ir.assert_structural_equal(transform.Rewrite()(after), expected)


def test_common_subexpressions_and_dead_code():
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor(("n", 4), "float32")) -> R.Tensor(("n", 4), "float32"):
            with R.dataflow():
                a = R.exp(x)
                b = R.exp(x)
                unused = R.tanh(b)  # noqa: F841
                alias = b
                y = R.add(a, alias)
                R.output(y)
            return y

    @I.ir_module
    class Expected:
        @R.function
        def main(x: R.Tensor(("n", 4), "float32")) -> R.Tensor(("n", 4), "float32"):
            with R.dataflow():
                a = R.exp(x)
                y = R.add(a, a)
                R.output(y)
            return y

    check(Before, Expected)


def test_different_attributes_are_not_common():
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((3, 4), "float32")) -> R.Tensor((3, 4), "float32"):
            with R.dataflow():
                a = R.nn.softmax(x, axis=0)
                b = R.nn.softmax(x, axis=1)
                y = R.add(a, b)
                R.output(y)
            return y

    check(Before, Before)


def test_batch_norm_takes_its_inference_form():
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((2, 3, 5, 5), "float32"), s: R.Tensor((3,), "float32")) -> R.Tensor(
            (2, 3, 5, 5), "float32"
        ):
            with R.dataflow():
                three = R.nn.batch_norm(x, s, s, s, s, axis=1)
                y = three[0]
                R.output(y)
            return y

    text = transform.Rewrite()(Before)["main"].script()
    assert "batch_norm" not in text
    assert "R.sqrt" in text
