"""The rewriting stage: modules before and after."""

import numpy as np
import pytest
import tvm
from tvm.script import ir as I
from tvm.script import relax as R

from tvm_fusion import UserError, transform
from tvm_fusion.core.decisions import recording
from tvm_fusion.device import parse

SIZES = (64, 128)


def check(before, expected):
    with parse("cpu").tvm_target():
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
                three = R.nn.batch_norm(x, s, s, s, s, axis=1, training=False)
                y = three[0]
                R.output(y)
            return y

    text = transform.Rewrite("none")(Before)["main"].script()
    assert "batch_norm" not in text
    assert "R.sqrt" in text


@I.ir_module
class Scaled:
    """Two products of one left operand, and a sum in which a factor stands twice."""

    @R.function
    def main(
        x: R.Tensor(SIZES, "float32"),
        y: R.Tensor(SIZES, "float32"),
        z: R.Tensor(SIZES, "float32"),
        v: R.Tensor((32, 64), "float32"),
    ) -> R.Tensor((32, 256), "float32"):
        with R.dataflow():
            a = R.multiply(x, z)
            b = R.multiply(y, z)
            s = R.add(a, b)
            h = R.matmul(v, s)
            p = R.matmul(h, R.const(np.ones((128, 128), "float32")))
            q = R.matmul(h, R.const(np.full((128, 128), 2, "float32")))
            both = R.concat([p, q], axis=1)
            R.output(both)
        return both


def counts(*options, **named):
    with parse("cpu").tvm_target():
        text = transform.Rewrite(*options, **named)(Scaled)["main"].script()
    return tuple(text.count(f"R.{name}(") for name in ("multiply", "matmul"))


@pytest.mark.parametrize("how", ["search", "greedy"])
def test_flags_allow_laws(how):
    assert counts(how) == (2, 3)
    assert counts(how, allow=["reassociate"]) == (1, 3)


def test_rules_are_switched_off_by_name():
    assert counts(allow=["reassociate"], without=["factor_multiply"]) == (2, 3)


def test_none_leaves_all_algebra_out():
    assert counts("none", allow=["reassociate"]) == (2, 3)


def test_without_a_target_nothing_is_searched_and_that_is_said():
    with recording() as decisions:
        text = transform.Rewrite(allow=["reassociate"])(Scaled)["main"].script()
    assert text.count("R.multiply(") == 2
    assert [d.code for d in decisions if d.producer == "Rewrite"] == ["no_target"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"search": "all"}, "rewrite 'all'; expected one of search, greedy, none"),
        ({"allow": ["fast"]}, "there is no flag 'fast'; expected one of"),
        ({"without": ["factor_multipl"]}, "no rule 'factor_multipl'; expected one of factor_mult"),
    ],
)
def test_options_that_cannot_be(options, words):
    with pytest.raises(UserError, match=words):
        transform.Rewrite(**options)


@pytest.mark.parametrize("how", ["search", "greedy", "none"])
def test_a_second_time_changes_nothing(how):
    rewrite = transform.Rewrite(how, allow=["reassociate"])
    with parse("cpu").tvm_target():
        once = rewrite(Scaled)
        tvm.ir.assert_structural_equal(rewrite(once), once)


def test_constants_that_laws_bring_together_are_folded():
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((8, 4), "float32")) -> R.Tensor((8, 4), "float32"):
            with R.dataflow():
                a = R.multiply(x, R.const(np.arange(4, dtype="float32")))
                y = R.multiply(R.const(np.ones(4, "float32") * 3), a)
                R.output(y)
            return y

    with parse("cpu").tvm_target():
        text = transform.Rewrite(allow=["reassociate"])(Before)["main"].script()
    assert text.count("R.multiply(") == 1
