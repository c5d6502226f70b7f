"""Intermediate bytes, functions, dimensions and foreign calls of whole modules."""

import counted_graphs as graphs
import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op
from tvm.script import ir as I
from tvm.script import relax as R

from tvm_fusion.deploy.count import Count, count, count_stock
from tvm_fusion.errors import UserError

CPU = tvm.target.Target("llvm")


def stock(name: str, target: tvm.target.Target = CPU) -> Count:
    entry = graphs.GRAPHS[name]
    return count_stock(entry.build(), target, function=entry.functions[0], dims=entry.dims)


def test_one_call_has_no_intermediate() -> None:
    counted = stock("elementwise_chain")
    assert (counted.calls, counted.visible_bytes) == (1, 0)
    # The CPU pipeline fuses three operators into one PrimFunc of three nests.
    assert counted.kernels == 3
    assert counted.hidden_bytes == 2 * 33 * 65 * 4
    assert counted.intermediate_bytes == counted.hidden_bytes


def test_gpu_schedule_of_the_same_graph_hides_nothing() -> None:
    counted = stock("elementwise_chain", graphs.cuda())
    assert (counted.kernels, counted.intermediate_bytes) == (1, 0)


def test_tensors_between_calls_are_visible() -> None:
    counted = stock("softmax_written_out", graphs.cuda())
    assert counted.calls == 4
    assert counted.visible_bytes == (31 + 31 * 200 + 31) * 4


def test_returned_tensors_and_views_of_them_do_not_count() -> None:
    def body(e, x):
        y = e(op.nn.softmax(x, -1))
        return [y, op.nn.softmax(e(op.reshape(y, (65, 33))), -1)]

    counted = count_stock(graphs.make([graphs.tensor("x", 33, 65)], body), CPU)
    assert (counted.calls, counted.visible_bytes) == (2, 0)


def test_weights_do_not_count_as_constants_or_parameters() -> None:
    weight = relax.const(np.ones((65, 7), "float32"))
    x = graphs.tensor("x", 33, 65)
    constant = graphs.make([x], lambda e, x: op.matmul(x, weight))
    parameter = graphs.make([x, graphs.tensor("w", 65, 7)], lambda e, x, w: op.matmul(x, w))
    for mod in (constant, parameter):
        counted = count_stock(mod, CPU)
        assert (counted.kernels, counted.intermediate_bytes) == (1, 0)


@pytest.mark.parametrize(("n", "s"), [(1, 1), (13, 7)])
def test_symbolic_bytes_follow_the_dimensions(n: int, s: int) -> None:
    mod = graphs.GRAPHS["symbolic_batch"].build()
    counted = count_stock(mod, graphs.cuda(), dims={"n": n, "s": s})
    # The product and its exponential; the last reshape makes a copy, which is the output.
    assert counted.visible_bytes == 2 * n * s * 64 * 4
    assert counted.kernels == 4


def test_lowered_and_unlowered_modules_count_alike() -> None:
    entry = graphs.GRAPHS["symbolic_batch"]
    mod = graphs.unfused(entry, graphs.cuda())
    with graphs.cuda():
        lowered = relax.get_pipeline("default_build")(mod)
    counted = [count(m, graphs.cuda(), dims=entry.dims) for m in (mod, lowered)]
    assert counted[0] == counted[1]


def test_library_calls_are_launches() -> None:
    @I.ir_module
    class Module:
        @R.function
        def main(x: R.Tensor((33, 65), "float32")):
            with R.dataflow():
                y = R.call_dps_packed("some.library", (x,), out_ty=R.Tensor((33, 65), "float32"))
                z = R.exp(y)
                R.output(z)
            return z

    counted = count_stock(Module, CPU)
    assert (counted.kernels, counted.library_calls, counted.calls) == (2, 1, 1)
    assert [launch.kind for launch in counted.launches] == ["library", "kernel"]
    assert counted.visible_bytes == 33 * 65 * 4


def test_longer_branch_counts() -> None:
    @I.ir_module
    class Module:
        @R.function
        def main(flag: R.Tensor((), "bool"), x: R.Tensor((33, 65), "float32")):
            if flag:
                y = R.exp(x)
            else:
                a = R.nn.softmax(x)
                y = R.nn.softmax(a)
            return y

    counted = count_stock(Module, CPU)
    assert counted.calls == 2
    assert counted.visible_bytes == 33 * 65 * 4


def test_data_dependent_shape_is_a_caveat() -> None:
    @I.ir_module
    class Module:
        @R.function
        def main(
            x: R.Tensor((33, 65), "float32"),
            begin: R.Tensor((2,), "int64"),
            end: R.Tensor((2,), "int64"),
            strides: R.Tensor((2,), "int64"),
        ):
            with R.dataflow():
                y = R.dynamic_strided_slice(x, begin, end, strides)
                z = R.exp(y)
                R.output(z)
            return z

    counted = count(Module, CPU)
    assert counted.calls == 3
    assert counted.caveats


def test_unscheduled_function_on_a_gpu_is_refused() -> None:
    mod = graphs.GRAPHS["siblings"].build()
    with pytest.raises(UserError, match=r"writes .* from the host.*run the target's pipeline"):
        count(mod, graphs.cuda())


def test_missing_function_is_refused() -> None:
    with pytest.raises(UserError, match=r"no function 'main'.*first, second"):
        count(graphs.GRAPHS["two_functions"].build(), CPU)


def test_unbound_dimension_is_refused() -> None:
    with pytest.raises(UserError, match=r"symbolic dimension 's'.*dims="):
        count(graphs.GRAPHS["symbolic_batch"].build(), CPU, dims={"n": 3})
