"""Whole searches: what laws of products, convolutions and reductions make of small graphs."""

import numpy as np
import pytest
import tvm
from relax_modules import main_module
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

from tvm_fusion.device import parse
from tvm_fusion.frontend.normalize import FoldConstants
from tvm_fusion.rewrite.laws import allowed
from tvm_fusion.rewrite.search.search import SearchEquivalents

TARGET = parse("cpu:x86-64-v3")
RNG = np.random.default_rng(5)


def searched(mod: tvm.IRModule, *flags: str) -> tvm.IRModule:
    """Search, and fold constants as the pipeline does."""
    with TARGET.tvm_target():
        return FoldConstants()(SearchEquivalents(allowed(flags))(mod))


def main(*inputs, write) -> tvm.IRModule:
    """Write a function of tensors as a module."""
    return main_module([relax.Var(f"x{i}", ty) for i, ty in enumerate(inputs)], write)


def tensor(*shape):
    return relax.TensorType(shape, "float32")


def const(*shape):
    return relax.const(RNG.normal(size=shape).astype("float32"))


def names(mod: tvm.IRModule) -> list[str]:
    """List the operators of a module."""
    (block,) = mod["main"].body.blocks
    calls = (b.value for b in block.bindings)
    return [c.op.name.removeprefix("relax.") for c in calls if isinstance(c, relax.Call)]


def constants(mod: tvm.IRModule) -> list[np.ndarray]:
    """List the constants that operators read."""
    (block,) = mod["main"].body.blocks
    calls = [b.value for b in block.bindings if isinstance(b.value, relax.Call)]
    return [a.value.numpy() for c in calls for a in c.args if isinstance(a, tvm.ir.GenericConst)]


def test_a_scale_of_rows_leaves_their_sum():
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((64, 96), "float32"), s: R.Tensor((64, 1), "float32")):
            with R.dataflow():
                lv = R.multiply(x, s)
                lv1 = R.sum(lv, axis=[1], keepdims=True)
                lv2 = R.multiply(lv1, R.const(1.0 / 96, "float32"))
                R.output(lv2)
            return lv2

    @I.ir_module
    class Expected:
        @R.function
        def main(x: R.Tensor((64, 96), "float32"), s: R.Tensor((64, 1), "float32")):
            with R.dataflow():
                lv = R.sum(x, axis=[1], keepdims=True)
                lv1 = R.multiply(s, lv)
                lv2 = R.multiply(lv1, R.const(1.0 / 96, "float32"))
                lv3 = lv2
                R.output(lv3)
            return lv3

    tvm.ir.assert_structural_equal(searched(Before, "reassociate"), Expected)


def test_without_the_flag_it_stays_in_the_sum():
    mod = main(
        tensor(64, 96),
        tensor(64, 1),
        write=lambda emit, x, s: relax.op.multiply(
            emit(relax.op.sum(emit(relax.op.multiply(x, s)), 1, True)),
            relax.const(1 / 96, "float32"),
        ),
    )
    assert names(searched(mod)) == ["multiply", "sum", "multiply"]


def test_a_row_scaling_leaves_a_product():
    """Scaling a 512 x 512 matrix by rows costs more than scaling the 512 x 16 product."""
    weights = const(512, 16)
    mod = main(
        tensor(512, 512),
        tensor(512, 1),
        write=lambda emit, x, s: relax.op.matmul(emit(relax.op.multiply(x, s)), weights),
    )
    assert names(searched(mod, "reassociate")) == ["matmul", "multiply"]
    tvm.ir.assert_structural_equal(searched(mod), mod)


def test_constant_matrices_are_multiplied():
    first, second = const(96, 32), const(32, 48)
    mod = main(
        tensor(256, 96),
        write=lambda emit, x: relax.op.matmul(emit(relax.op.matmul(x, first)), second),
    )
    found = searched(mod, "reassociate")
    assert names(found) == ["matmul"]
    (folded,) = constants(found)
    expected = first.value.numpy().astype("float64") @ second.value.numpy().astype("float64")
    np.testing.assert_allclose(folded, expected, rtol=1e-6, atol=1e-6)


def test_a_bottleneck_of_constant_matrices_stays():
    first, second = const(512, 8), const(8, 512)
    mod = main(
        tensor(256, 512),
        write=lambda emit, x: relax.op.matmul(emit(relax.op.matmul(x, first)), second),
    )
    tvm.ir.assert_structural_equal(searched(mod, "reassociate"), mod)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_a_batch_norm_moves_into_a_convolution(layout):
    is_last = layout == "NHWC"
    filters = const(3, 3, 8, 16) if is_last else const(16, 8, 3, 3)
    scale, shift = (const(16) if is_last else const(16, 1, 1) for _ in range(2))
    kernel = "HWIO" if is_last else "OIHW"
    mod = main(
        tensor(1, 14, 14, 8) if is_last else tensor(1, 8, 14, 14),
        write=lambda emit, x: relax.op.add(
            emit(
                relax.op.multiply(
                    emit(
                        relax.op.nn.conv2d(
                            x, filters, padding=1, data_layout=layout, kernel_layout=kernel
                        )
                    ),
                    scale,
                )
            ),
            shift,
        ),
    )
    found = searched(mod, "reassociate")
    assert names(found) == ["nn.conv2d", "add"]
    by_channel = scale.value.numpy().reshape((1, 1, 1, 16) if is_last else (16, 1, 1, 1))
    np.testing.assert_allclose(
        constants(found)[0], filters.value.numpy() * by_channel, rtol=1e-6, atol=0
    )


def test_two_products_of_one_weight_become_one():
    weights = const(64, 64)
    mod = main(
        tensor(128, 64),
        tensor(128, 64),
        write=lambda emit, x, y: relax.op.add(
            emit(relax.op.matmul(x, weights)), emit(relax.op.matmul(y, weights))
        ),
    )
    assert sorted(names(searched(mod, "reassociate"))) == ["add", "matmul"]


def test_a_symbolic_batch():
    n = tvm.tirx.Var("n", "int64")
    first, second = const(96, 32), const(32, 48)
    mod = main(
        tensor(n, 96),
        write=lambda emit, x: relax.op.matmul(emit(relax.op.matmul(x, first)), second),
    )
    assert names(searched(mod, "reassociate")) == ["matmul"]


def test_the_largest_exponential():
    mod = main(
        tensor(64, 96),
        write=lambda emit, x: relax.op.max(emit(relax.op.exp(x)), 1),
    )
    assert names(searched(mod)) == ["max", "exp"]


def test_layers_with_other_biases_are_one_search():
    from tvm_fusion.rewrite.egraph.regions import regions
    from tvm_fusion.rewrite.search.search import Searcher

    with TARGET.tvm_target() as target:
        searcher = Searcher(allowed(), target)
        found = []
        for _ in range(2):
            bias = const(96)
            mod = main(
                tensor(64, 96),
                write=lambda emit, x, b=bias: relax.op.exp(emit(relax.op.add(x, b))),
            )
            (region,) = regions(mod["main"].body.blocks[0])
            found.append(searcher.search(region))
    assert found[0] is found[1]
