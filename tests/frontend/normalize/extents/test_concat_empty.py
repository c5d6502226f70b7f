import tvm
from tvm.script import ir as I
from tvm.script import relax as R

from tvm_fusion.frontend.normalize import ConcatEmpty

F32 = "float32"


@I.ir_module
class Before:
    @R.function
    def main(x: R.Tensor(("n", 4), F32), e: R.Tensor(("n", 0), F32)) -> R.Tuple(
        R.Tensor(("n", 4), F32), R.Tensor(("n", 8), F32)
    ):
        with R.dataflow():
            y = R.concat((e, x), axis=-1)
            z = R.concat((x, e, y), axis=1)
            R.output(y, z)
        return (y, z)


def test_operands_without_elements_go(operators):
    after = ConcatEmpty()(Before)
    assert operators(after["main"]) == ["concat"]
    binding = after["main"].body.blocks[0].bindings[-1]
    assert len(binding.value.args[0].fields) == 2
    tvm.ir.assert_structural_equal(
        after["main"].ret_ty.fields[1], Before["main"].ret_ty.fields[1], True
    )


def test_all_or_nothing_stays():
    @I.ir_module
    class Empty:
        @R.function
        def main(e: R.Tensor((3, 0), F32), x: R.Tensor((3, 2), F32)):
            with R.dataflow():
                y = R.concat((e, e), axis=1)
                z = R.concat((x, x), axis=1)
                R.output(y, z)
            return (y, z)

    assert ConcatEmpty()(Empty).same_as(Empty)
