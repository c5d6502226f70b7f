"""Operators over nothing: numpy's and ONNX's results, and a refusal where there is none."""

import math

import ml_dtypes
import numpy as np
import pytest
import tvm
from relax_modules import main_module
from tvm import relax, tirx
from tvm.ir import GenericConst
from tvm.script import ir as I
from tvm.script import relax as R

from tvm_fusion.errors import UserError
from tvm_fusion.frontend.normalize import FoldConstants, FoldZeroExtents

op = relax.op
F32, I64 = "float32", "int64"


def module(build, *specs):
    """Build a function of tensors given by (shape, dtype), or of constants given as arrays."""
    operands = [
        relax.const(s, str(s.dtype))
        if isinstance(s, np.ndarray)
        else relax.Var(f"x{i}", relax.TensorType(*s))
        for i, s in enumerate(specs)
    ]
    return main_module([x for x in operands if isinstance(x, relax.Var)], build(*operands))


def numpy_dtype(name):
    return np.dtype(getattr(ml_dtypes, name, name))


def result_of(mod):
    """Evaluate what FoldZeroExtents leaves by folding it: it reads no parameter."""
    (binding,) = [b for b in FoldConstants()(mod)["main"].body.blocks[0].bindings]
    return binding.value.value.numpy()


def test_a_graph_without_elements_becomes_zeros(operators):
    n = tirx.Var("n", "int64")

    def build(x, w):
        y = op.nn.rms_norm(op.exp(x), w, [-1])
        return op.concat([op.cumsum(y, 0), op.permute_dims(op.nn.softmax(y, 1), [0, 1])], 0)

    after = FoldZeroExtents()(module(build, ((n, 0), F32), ((0,), F32)))
    assert operators(after["main"]) == ["zeros"]
    tvm.ir.assert_structural_equal(after["main"].ret_ty.shape[0], n * 2)
    assert FoldZeroExtents()(after).same_as(after)


def test_graphs_with_elements_stay():
    mod = module(lambda x: op.sum(op.exp(x), [0]), ((3, tirx.Var("n", "int64")), F32))
    assert FoldZeroExtents()(mod).same_as(mod)


IDENTITIES = {
    "sum": {F32: 0, "bfloat16": 0, I64: 0, "uint8": 0},
    "prod": {F32: 1, "float16": 1, "int8": 1},
    "max": {F32: -math.inf, "bfloat16": -math.inf, I64: -(2**63), "uint8": 0, "bool": False},
    "min": {F32: math.inf, "float16": math.inf, I64: 2**63 - 1, "int8": 127, "bool": True},
    "mean": {F32: math.nan, "bfloat16": math.nan},
    "variance": {F32: math.nan},
    "std": {"float16": math.nan},
}


@pytest.mark.parametrize("name", IDENTITIES)
def test_reductions_over_nothing_are_identities(name):
    for dtype, number in IDENTITIES[name].items():
        reduce = getattr(op, name)
        mod = FoldZeroExtents()(module(lambda x: reduce(x, [0], True), ((0, 3), dtype)))  # noqa: B023
        expected = np.full((1, 3), number, numpy_dtype(dtype))
        found = result_of(mod)
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(*(a.astype("float64") for a in (found, expected)))
        if expected.dtype == I64:  # beyond the precision of float64
            np.testing.assert_array_equal(found, expected)


SUMS = {
    "matmul": (op.matmul, ((3, 0), F32), ((0, 4), F32)),
    "einsum": (lambda *xs: op.einsum(list(xs), "ij,jk->ik"), ((3, 0), F32), ((0, 4), F32)),
    "conv": (op.nn.conv1d, ((1, 0, 5), F32), ((2, 0, 3), F32)),
    "conv_transpose": (op.nn.conv1d_transpose, ((1, 3, 0), F32), ((3, 4, 5), F32)),
    "attention": (op.nn.attention, ((1, 5, 2, 4), F32), *[((1, 0, 2, 4), F32)] * 2),
    "bucketize": (op.bucketize, ((5,), F32), ((0,), F32)),
    "classes": (op.nn.cross_entropy_with_logits, *[((4, 0), F32)] * 2),
    "size": (op.size, ((0, 4), F32)),
}


@pytest.mark.parametrize("case", SUMS)
def test_sums_of_no_terms_are_zeros(case):
    build, *specs = SUMS[case]
    mod = module(build, *specs)
    ty = mod["main"].ret_ty
    found = result_of(FoldZeroExtents()(mod))
    np.testing.assert_array_equal(found, np.zeros([int(d) for d in ty.shape], str(ty.dtype.dtype)))


def test_a_loss_over_no_rows_is_not_a_number():
    mod = module(op.nn.cross_entropy_with_logits, ((0, 3), F32), ((0, 3), F32))
    assert math.isnan(result_of(FoldZeroExtents()(mod)))
    losses = [(lambda *xs, r=r: op.nn.nll_loss(*xs, reduction=r)) for r in ("mean", "sum")]
    found = [result_of(FoldZeroExtents()(module(f, ((0, 3), F32), ((0,), I64)))) for f in losses]
    np.testing.assert_array_equal(found, [math.nan, 0.0])


def test_a_border_around_nothing_is_the_result():
    mod = module(lambda x: op.nn.pad(x, [1, 1, 0, 0], "constant", 2.5), ((0, 3), F32))
    np.testing.assert_array_equal(result_of(FoldZeroExtents()(mod)), np.full((2, 3), 2.5, F32))


@pytest.mark.parametrize(
    ("write", "rest"),
    [
        (op.scatter_elements, [((0, 3), I64), ((0, 3), F32)]),
        (op.scatter_nd, [((0, 1), I64), ((0, 3), F32)]),
        (lambda x, u: op.slice_scatter(x, u, 1, 1, 1, 0), [((0, 3), F32)]),
        (lambda x, i, j, u: op.index_put(x, (i, j), u), [*[((0,), I64)] * 2, ((0,), F32)]),
    ],
)
def test_no_updates_leave_the_tensor(write, rest, operators):
    after = FoldZeroExtents()(module(lambda x, *xs: write(op.exp(x), *xs), ((4, 3), F32), *rest))
    assert operators(after["main"]) == ["exp"]


REFUSED = {
    "take": (lambda x: op.take(x, relax.const([1, 0], I64), 0), F32),
    "argmax": (lambda x: op.argmax(x, 0), F32),
    "median": (lambda x: op.median(x, [0]), F32),
    "nn.pad": (lambda x: op.nn.pad(x, [1, 1, 0, 0], "replicate"), F32),
    "mean": (lambda x: op.mean(x, 0), "int32"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_result_is_refused_by_name(name):
    build, dtype = REFUSED[name]
    with pytest.raises(Exception, match=rf"operator {name} on .*\[0, 3\].*") as found:
        FoldZeroExtents()(module(build, ((0, 3), dtype)))
    assert UserError.__name__ in found.typename or "expected extents" in str(found.value)


def test_parts_without_elements(run, rng, operators):
    def build(x):
        return op.split(x, [0, 2, 2], 1)

    mod = FoldZeroExtents()(module(build, ((3, 5), F32)))
    assert "split" not in operators(mod["main"])
    x = rng.normal(size=(3, 5)).astype(F32)
    for found, expected in zip(run(mod, x), np.split(x, [0, 2, 2], 1), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_a_normalization_keeps_its_statistics(operators):
    def build(x, *parameters):
        return op.nn.batch_norm(x, *parameters, 1, training=False)

    mod = module(build, ((0, 3, 2), F32), *[((3,), F32)] * 4)
    assert FoldZeroExtents()(mod).same_as(mod)  # a tuple with elements among it

    @I.ir_module
    class First:
        @R.function
        def main(x: R.Tensor((0, 3), F32), s: R.Tensor((3,), F32)):
            with R.dataflow():
                y = R.nn.batch_norm(x, s, s, s, s, axis=1, training=False)
                z = y[0]
                R.output(z)
            return z

    assert operators(FoldZeroExtents()(First)["main"]) == ["zeros"]


def test_no_constant_without_elements_is_left(run, rng):
    nothing = np.zeros((0, 3), F32)
    mod = module(lambda x, c: relax.Tuple([op.exp(x), c]), ((3,), F32), nothing)
    after = FoldConstants()(FoldZeroExtents()(mod))
    constants = []

    def visit(expr):
        if isinstance(expr, GenericConst):
            constants.append(expr)

    relax.analysis.post_order_visit(after["main"], visit)
    assert not constants
    x = rng.normal(size=3).astype(F32)
    found = run(after, x)
    np.testing.assert_allclose(found[0], np.exp(x), rtol=1e-6)
    assert found[1].shape == (0, 3)
