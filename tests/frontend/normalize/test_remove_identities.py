import tvm
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from tvm_fusion.frontend.normalize import NormalizeImport, RemoveIdentities

F32 = "float32"


@I.ir_module
class Before:
    @R.function
    def main(x: R.Tensor(("n", 4), F32)) -> R.Tensor(("n", 4), F32):
        n = T.int64()
        with R.dataflow():
            a = R.astype(x, F32)
            b = R.reshape(a, R.shape([n, 4]))
            c = R.exp(b)
            d = R.broadcast_to(c, R.shape([n, 4]))
            e = R.permute_dims(d, axes=[0, 1])
            f = R.nn.dropout(e, rate=0.5)
            g = f[0]
            y = R.tanh(g)
            R.output(y)
        return y


@I.ir_module
class Expected:
    @R.function
    def main(x: R.Tensor(("n", 4), F32)) -> R.Tensor(("n", 4), F32):
        with R.dataflow():
            c = R.exp(x)
            y = R.tanh(c)
            R.output(y)
        return y


def test_before_and_expected():
    tvm.ir.assert_structural_equal(RemoveIdentities()(Before), Expected)


def test_operators_that_do_something_stay():
    @I.ir_module
    class Useful:
        @R.function
        def main(x: R.Tensor(("n", 4), F32)) -> R.Tensor((4, "n"), "float16"):
            with R.dataflow():
                a = R.astype(x, "float16")
                y = R.permute_dims(a, axes=[1, 0])
                R.output(y)
            return y

    assert RemoveIdentities()(Useful).same_as(Useful)


def test_normalizing_twice_changes_nothing():
    once = NormalizeImport()(Before)
    tvm.ir.assert_structural_equal(NormalizeImport()(once), once)
    tvm.ir.assert_structural_equal(once, Expected)


def test_functions_that_are_not_ours_stay():
    @I.ir_module
    class Foreign:
        @R.function(private=True)
        def group(x: R.Tensor((4,), F32)) -> R.Tensor((4,), F32):
            R.func_attr({"Primitive": True})
            with R.dataflow():
                a = R.astype(x, F32)
                y = R.exp(a)
                R.output(y)
            return y

        @R.function
        def main(x: R.Tensor((4,), F32)) -> R.Tensor((4,), F32):
            cls = Foreign
            with R.dataflow():
                y = cls.group(x)
                R.output(y)
            return y

    after = NormalizeImport()(Foreign)
    assert after["group"].same_as(Foreign["group"])
