import ml_dtypes
import numpy as np
import pytest
import tvm
from relax_modules import main_module
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

from tvm_fusion.core.constants.evaluate import evaluate
from tvm_fusion.frontend.normalize import FoldConstants
from tvm_fusion.frontend.normalize.constants.stored import SMALL

F32 = "float32"


def normalized(call):
    """Infer a call's type."""
    return returning(call)["main"].body.blocks[0].bindings[0].value


def returning(*calls):
    """Build a function without parameters that returns the calls' results."""

    def result(emit, *_):
        results = [emit(call) for call in calls]
        return results[0] if len(results) == 1 else relax.Tuple(results)

    return main_module([], result)


def const(array, dtype=None):
    array = np.asarray(array)
    return relax.const(array, dtype or str(array.dtype))


A = np.array([[0.5, -1.25, 3.0], [2.0, 0.25, -0.75]], "float32")
P = np.abs(A)
IDS = np.array([[2, 0], [1, 1]])

CASES = {
    "add": lambda: relax.op.add(const(A), const(P)),
    "subtract": lambda: relax.op.subtract(const(A), const(P[0])),
    "multiply_ints": lambda: relax.op.multiply(const(IDS), const(IDS)),
    "divide": lambda: relax.op.divide(const(A), const(P)),
    "power": lambda: relax.op.power(const(P), const(np.float32(1.5))),
    "maximum": lambda: relax.op.maximum(const(A), const(P)),
    "sqrt": lambda: relax.op.sqrt(const(P)),
    "rsqrt": lambda: relax.op.rsqrt(const(P)),
    "exp": lambda: relax.op.exp(const(A)),
    "sigmoid": lambda: relax.op.sigmoid(const(A)),
    "negative": lambda: relax.op.negative(const(A)),
    "sign": lambda: relax.op.sign(const(np.array([np.nan, -2.0, 0.0, np.inf], F32))),
    "sign_of_ints": lambda: relax.op.sign(const(IDS - 1)),
    "greater": lambda: relax.op.greater(const(A), const(P)),
    "logical_not": lambda: relax.op.logical_not(const(A > 0)),
    "bitwise_and": lambda: relax.op.bitwise_and(const(IDS), const(IDS[::-1].copy())),
    "bitwise_or_of_truth": lambda: relax.op.bitwise_or(const(A > 0), const(P > 1)),
    "bitwise_xor": lambda: relax.op.bitwise_xor(const(IDS), const(IDS[0])),
    "left_shift": lambda: relax.op.left_shift(const(IDS), const(IDS[0])),
    "bitwise_not": lambda: relax.op.bitwise_not(const(IDS)),
    "index_tensor": lambda: relax.op.index_tensor(const(A), [const(IDS[:, :1] % 2), const(IDS)]),
    "gather_elements": lambda: relax.op.gather_elements(const(A), const(IDS), 1),
    "full_like": lambda: relax.op.full_like(const(A), const(np.float32(2.5))),
    "where": lambda: relax.op.where(const(A > 0), const(A), const(P)),
    "isnan": lambda: relax.op.isnan(const(np.array([np.nan, 1.0], "float32"))),
    "astype": lambda: relax.op.astype(const(A * 4), "int32"),
    "reshape": lambda: relax.op.reshape(const(A), (3, 2)),
    "expand_dims": lambda: relax.op.expand_dims(const(A), [0, 2]),
    "squeeze": lambda: relax.op.squeeze(const(A[None])),
    "flatten": lambda: relax.op.flatten(const(A)),
    "permute_dims": lambda: relax.op.permute_dims(const(A)),
    "permute_dims_axes": lambda: relax.op.permute_dims(const(A[None]), [1, 0, 2]),
    "concat": lambda: relax.op.concat([const(A), const(P)], axis=1),
    "stack": lambda: relax.op.stack([const(A), const(P)], axis=1),
    "broadcast_to": lambda: relax.op.broadcast_to(const(A), (2, 2, 3)),
    "strided_slice": lambda: relax.op.strided_slice(const(A), [1], [0], [3], [2]),
    "take": lambda: relax.op.take(const(A), const(IDS), axis=1),
    "full": lambda: relax.op.full((2, 3), const(np.float32(2)), F32),
    "zeros": lambda: relax.op.zeros((2, 3), F32),
    "ones": lambda: relax.op.ones((2, 3), "int64"),
    "arange": lambda: relax.op.arange(1, 9, 2, "int64"),
    "tril": lambda: relax.op.tril(const(A), 1),
    "triu": lambda: relax.op.triu(const(A)),
    "sum": lambda: relax.op.sum(const(A), [0], True),
    "mean": lambda: relax.op.mean(const(A)),
    "max": lambda: relax.op.max(const(A), [1]),
}


@pytest.fixture(scope="module")
def computed_by_tvm(run):
    return dict(zip(CASES, run(returning(*(case() for case in CASES.values()))), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_evaluates_like_tvm(name, computed_by_tvm):
    ours, theirs = evaluate(normalized(CASES[name]())), computed_by_tvm[name]
    assert ours.dtype == theirs.dtype
    assert ours.shape == theirs.shape
    np.testing.assert_allclose(ours, theirs, rtol=2e-7)


def test_rounds_once_from_float64():
    values = np.array([1.0009765625, 3.0], "float16")
    call = normalized(relax.op.sum(const(np.tile(values, 500)), [0]))
    exact = np.tile(values, 500).astype("float64").sum()
    assert evaluate(call) == np.float16(exact)
    halves = normalized(relax.op.sqrt(const(values.astype(ml_dtypes.bfloat16), "bfloat16")))
    expected = np.sqrt(values.astype(ml_dtypes.bfloat16).astype("float64"))
    np.testing.assert_array_equal(evaluate(halves), expected.astype(ml_dtypes.bfloat16))


@pytest.mark.parametrize(
    "call",
    [
        lambda: relax.op.take(const(A), const(np.array([0, 9])), axis=1),
        lambda: relax.op.divide(const(IDS), const(IDS + 1)),
        lambda: relax.op.strided_slice(const(A), [1], [2], [-4], [-1]),
        lambda: relax.op.round(const(A)),
    ],
)
def test_leaves_alone_what_it_does_not_know_for_sure(call):
    assert evaluate(normalized(call())) is None


BEYOND = np.array([-2.2, 300, 7e4, 3e9, 5e9, -3e9, 1e19, 2e19, np.inf, -np.inf, np.nan], "float32")


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        ("int8", [-2, 44, 112, *[0] * 8]),
        ("uint16", [65534, 300, 4464, *[0] * 8]),
        ("int32", [-2, 300, 70000, *[-(2**31)] * 8]),
        ("uint32", [2**32 - 2, 300, 70000, 3 * 10**9, 0, 2**31, 0, 0, 0, 2**31, 2**31]),
        (
            "uint64",
            [
                2**64 - 2,
                300,
                70000,
                3 * 10**9,
                5 * 10**9,
                2**64 - 3 * 10**9,
                9999999980506447872,
                0,
                0,
                2**63,
                2**63,
            ],
        ),
    ],
)
def test_casts_beyond_the_range_as_on_x86(dtype, expected):
    """What PyTorch, ONNX Runtime and numpy compute there, and kernels everywhere."""
    call = normalized(relax.op.astype(const(BEYOND), dtype))
    np.testing.assert_array_equal(evaluate(call), np.array(expected, dtype))


def test_shifts_beyond_the_width():
    numbers = np.array([5, -5, 5, -5], "int64")
    by = np.array([64, 100, -1, -1], "int64")
    left = normalized(relax.op.left_shift(const(numbers), const(by)))
    right = normalized(relax.op.right_shift(const(numbers), const(by)))
    np.testing.assert_array_equal(evaluate(left), [0, 0, 0, 0])
    np.testing.assert_array_equal(evaluate(right), [0, -1, 0, -1])


def test_before_and_expected():
    w = np.arange(6, dtype="float32").reshape(2, 3)
    bias = np.array([1, 2], "float32")

    def module(fold):
        n = tvm.tirx.Var("n", "int64")
        x = relax.Var("x", relax.TensorType((n, 3), F32))

        def result(emit, *_):
            weight, shift = const(w.T.copy()), const(bias.reshape(1, 2))
            if not fold:
                weight = emit(relax.op.permute_dims(const(w)))
                shift = emit(relax.op.reshape(const(bias), (1, 2)))
            y = emit(relax.op.matmul(x, weight))
            return relax.op.add(y, shift)

        return main_module([x], result)

    tvm.ir.assert_structural_equal(FoldConstants()(module(False)), module(True), map_free_vars=True)


def test_chains_fold_and_dead_bindings_go(operators):
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor(("n", 2), F32)) -> R.Tensor(("n", 2), F32):
            with R.dataflow():
                a = R.isnan(R.const(3.0, F32))
                b = R.where(a, R.const(0.0, F32), R.const(3.0, F32))
                c = R.exp(b)
                y = R.add(x, c)
                R.output(y)
            return y

    after = FoldConstants()(Before)
    assert operators(after["main"]) == ["add"]
    folded = after["main"].body.blocks[0].bindings[0].value.args[1]
    np.testing.assert_allclose(folded.value.numpy(), np.exp(3.0), rtol=1e-7)


def test_shapes_of_tensors_fold(operators):
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((4, 2), "int64")) -> R.Tensor((4, 2), "int64"):
            with R.dataflow():
                s = R.shape_of(x)
                t = R.shape_to_tensor(s)
                y = R.add(x, t)
                R.output(y)
            return y

    assert operators(FoldConstants()(Before)["main"]) == ["add"]


def folding_of(build, *params):
    builder = relax.BlockBuilder()
    with builder.function("main", list(params)):
        with builder.dataflow():
            out = builder.emit_output(build(builder))
        builder.emit_func_output(out)
    return FoldConstants()(builder.get())


def test_broadcasts_that_enlarge_stay(operators):
    extent = SMALL // 4  # of float32
    small = folding_of(lambda b: relax.op.broadcast_to(const(np.ones(1, F32)), (extent,)))
    assert operators(small["main"]) == []
    large = folding_of(lambda b: relax.op.broadcast_to(const(np.ones(1, F32)), (extent + 2,)))
    assert operators(large["main"]) == ["broadcast_to"]


def test_a_large_constant_is_not_stored_twice(operators):
    table = const(np.ones((1024, 600), F32))
    ids = relax.Var("ids", relax.TensorType((1, 4), "int64"))

    def tied(builder):
        rows = builder.emit(relax.op.take(table, ids, axis=0))
        return relax.op.matmul(rows, builder.emit(relax.op.permute_dims(table)))

    def untied(builder):
        x = builder.emit(relax.op.astype(relax.op.broadcast_to(ids, (600, 4)), F32))
        x = builder.emit(relax.op.permute_dims(x))
        return relax.op.matmul(x, builder.emit(relax.op.permute_dims(table)))

    assert "permute_dims" in operators(folding_of(tied, ids)["main"])
    assert operators(folding_of(untied, ids)["main"]).count("permute_dims") == 1


@pytest.mark.parametrize("hides", [False, True])
def test_a_mask_that_hides_nothing_is_folded(operators, hides):
    """It is larger than the truths it is made of; zeros are worth it, since nothing adds them."""
    truths = np.ones((SMALL, 2), bool)
    truths[7, 1] = not hides
    x = relax.Var("x", relax.TensorType(truths.shape, F32))

    def body(emit, x):
        mask = emit(relax.op.where(const(truths), const(np.float32(0)), const(np.float32(-9))))
        return emit(relax.op.add(x, mask))

    mod = FoldConstants()(main_module([x], body))
    assert operators(mod["main"]) == (["where"] if hides else []) + ["add"]


def test_equal_expressions_share_one_constant():
    table = const(np.ones((1024, 600), F32))

    def build(builder):
        a = builder.emit(relax.op.permute_dims(table))
        b = builder.emit(relax.op.permute_dims(table))
        x = builder.emit(relax.op.round(relax.op.zeros((2, 600), F32)))  # is not evaluated
        return relax.op.add(
            builder.emit(relax.op.matmul(x, a)), builder.emit(relax.op.matmul(x, b))
        )

    bindings = folding_of(build)["main"].body.blocks[0].bindings
    weights = [b.value.args[1] for b in bindings if b.value.op.name == "relax.matmul"]
    assert len(weights) == 2
    assert weights[0].same_as(weights[1])


def test_a_dequantised_bias_is_folded_and_weights_are_not():
    bias = np.array([-(1 << 30) + 1, 7, 1 << 24], "int32")
    scales = np.array([0.5, 3e-8, 1.25], F32)
    zero = const(np.zeros((), "int32"))
    dequantize = relax.op.dequantize
    mod = returning(dequantize(const(bias), const(scales), zero, axis=0, out_dtype=F32))
    (binding,) = FoldConstants()(mod)["main"].body.blocks[0].bindings
    folded = binding.value
    np.testing.assert_array_equal(folded.value.numpy(), bias.astype(F32) * scales)
    weights = const(np.arange(3, dtype="int8"))  # multiplied as bytes
    mod = returning(dequantize(weights, const(scales), const(np.int8(0)), axis=0, out_dtype=F32))
    assert FoldConstants()(mod).same_as(mod)
