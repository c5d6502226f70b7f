import ml_dtypes
import numpy as np
import pytest
import tvm
from onnx import helper
from tvm import relax, topi
from tvm.script import ir as I
from tvm.script import relax as R

from tvm_fusion.config import FusionConfig
from tvm_fusion.frontend import import_model
from tvm_fusion.frontend.half.precision import ToHalfPrecision
from tvm_fusion.signature import DimRange

pytestmark = pytest.mark.slow_beyond(2)

F32, F16, BF16 = "float32", "float16", "bfloat16"
NUMPY = {"fp16": np.float16, "bf16": ml_dtypes.bfloat16}
# Unit roundoff times a small factor for the operators on the way.
TOLERANCE = {"fp16": 4e-3, "bf16": 3e-2}


def casts(func):
    """List (variable, operand, target dtype) of each cast."""
    return [
        (binding.var, binding.value.args[0], str(binding.value.attrs.dtype))
        for block in func.body.blocks
        for binding in block.bindings
        if isinstance(binding.value, relax.Call)
        and binding.value.op == tvm.ir.Op.get("relax.astype")
    ]


def useless_casts(func):
    """Find values rounded to be widened again by their one reader."""
    readers: dict[int, int] = {}

    def visit(expr):
        if isinstance(expr, relax.Call):
            for arg in expr.args:
                readers[hash(arg)] = readers.get(hash(arg), 0) + 1

    relax.analysis.post_order_visit(func, visit)
    made = {hash(var): operand for var, operand, _ in casts(func)}
    return [var for var, x, _ in casts(func) if hash(x) in made and readers[hash(x)] == 1]


def test_before_and_expected():
    @I.ir_module
    class Before:
        @R.function
        def main(
            x: R.Tensor(("n", 8), F32), w: R.Tensor((8, 8), F32), b: R.Tensor((8,), F32)
        ) -> R.Tensor(("n", 8), F32):
            with R.dataflow():
                y = R.matmul(x, w)
                z = R.add(y, b)
                s = R.nn.softmax(z)
                u = R.matmul(s, w)
                v = R.nn.relu(u)
                t = R.add(v, v)
                r = R.matmul(t, w)
                R.output(r)
            return r

    @I.ir_module
    class Expected:
        @R.function
        def main(
            x: R.Tensor(("n", 8), F32), w: R.Tensor((8, 8), F32), b: R.Tensor((8,), F32)
        ) -> R.Tensor(("n", 8), F32):
            with R.dataflow():
                xh = R.astype(x, F16)
                wh = R.astype(w, F16)
                y = R.matmul(xh, wh, out_dtype=F32)
                z = R.add(y, b)
                s = R.nn.softmax(z)
                sh = R.astype(s, F16)
                u = R.matmul(sh, wh, out_dtype=F32)
                v = R.nn.relu(u)
                # Two readers share it, so it is stored: rounded where it is made.
                vh = R.astype(v, F16)
                t = R.add(vh, vh)
                r = R.matmul(t, wh, out_dtype=F32)
                R.output(r)
            return r

    tvm.ir.assert_structural_equal(ToHalfPrecision("fp16")(Before), Expected)


@pytest.fixture(scope="module")
def network(onnx_model):
    """Convolution, normalization over groups, attention-like part, projection."""
    rng = np.random.default_rng(1)

    def normal(*shape):
        return rng.standard_normal(shape, dtype=F32) / np.float32(np.sqrt(np.prod(shape[1:])))

    return onnx_model(
        [
            helper.make_node("Conv", ["x", "k", "kb"], ["a"], pads=[1, 1, 1, 1]),
            helper.make_node("Relu", ["a"], ["b"]),
            helper.make_node("Reshape", ["b", "rows"], ["c"]),
            helper.make_node("LayerNormalization", ["c", "g", "gb"], ["d"]),
            helper.make_node("MatMul", ["d", "w1"], ["q"]),
            helper.make_node("Transpose", ["d"], ["t"], perm=[0, 2, 1]),
            helper.make_node("MatMul", ["q", "t"], ["e"]),
            helper.make_node("Softmax", ["e"], ["f"]),
            helper.make_node("MatMul", ["f", "d"], ["h"]),
            helper.make_node("Add", ["h", "c"], ["i"]),
            helper.make_node("MatMul", ["i", "w2"], ["j"]),
            helper.make_node("Sigmoid", ["j"], ["s"]),
            helper.make_node("Mul", ["j", "s"], ["y"]),
        ],
        {"x": (F32, ["n", 3, 5, 6])},
        {"y": (F32, ["n", 7, 11])},
        {
            "k": normal(7, 3, 3, 3),
            "kb": normal(7),
            "rows": np.array([0, 7, 30]),
            "g": normal(30),
            "gb": normal(30),
            "w1": normal(30, 30),
            "w2": normal(30, 11),
        },
    )


@pytest.mark.slow
@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_numerics_over_symbolic_batches(precision, network, onnxruntime_run, run, rng):
    config = FusionConfig(precision=precision, dims={"n": DimRange(1, 4)})
    imported = import_model(network, config)
    assert imported.signatures["main"].outputs[0].dtype == F32
    assert useless_casts(imported.mod["main"]) == []
    for n in (1, 3):
        x = rng.standard_normal((n, 3, 5, 6), dtype=F32)
        (expected,) = onnxruntime_run(network, x=x)
        result = run(imported.mod, x)
        assert result.dtype == np.float32
        error = np.abs(result - expected).max() / np.abs(expected).max()
        assert 1e-6 < error < TOLERANCE[precision]  # it is half precision, and no worse


@pytest.mark.slow
@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_half_inputs_and_outputs(precision, network, onnxruntime_run, run, rng):
    config = FusionConfig(precision=precision, half_io=True, dims={"n": 2})
    imported = import_model(network, config)
    (given,), (returned,) = (
        imported.signatures["main"].inputs,
        imported.signatures["main"].outputs,
    )
    assert given.dtype == returned.dtype == {"fp16": F16, "bf16": BF16}[precision]
    x = rng.standard_normal((2, 3, 5, 6), dtype=F32).astype(NUMPY[precision])
    (expected,) = onnxruntime_run(network, x=x.astype(F32))
    result = run(imported.mod, x)
    assert result.dtype == NUMPY[precision]
    error = np.abs(result.astype(F32) - expected).max() / np.abs(expected).max()
    assert error < TOLERANCE[precision]


def test_weights_are_stored_in_half(network):
    mod = import_model(network, FusionConfig(precision="fp16", dims={"n": 1})).mod
    stored = {}

    def visit(expr):
        if isinstance(expr, relax.Call) and expr.op.name in ("relax.matmul", "relax.nn.conv2d"):
            stored[expr.op.name] = [str(arg.ty.dtype.dtype) for arg in expr.args]
            assert str(expr.ty.dtype.dtype) == F32  # what it sums in
        if isinstance(expr, relax.Call) and expr.op.name in ("relax.nn.softmax", "relax.sigmoid"):
            assert str(expr.args[0].ty.dtype.dtype) == F32

    relax.analysis.post_order_visit(mod["main"], visit)
    assert stored == {"relax.matmul": [F16, F16], "relax.nn.conv2d": [F16, F16]}


def test_positions_stay_exact(onnx_model, onnxruntime_run, run):
    """Sin of a position near 1000 is noise once the position is rounded to bfloat16."""
    frequencies = np.array([1.0, 0.3], F32)
    model = onnx_model(
        [
            helper.make_node("Cast", ["ids"], ["p"], to=1),
            helper.make_node("Unsqueeze", ["p", "last"], ["c"]),
            helper.make_node("Mul", ["c", "f"], ["a"]),
            helper.make_node("Concat", ["a", "a"], ["b"], axis=1),
            helper.make_node("Sin", ["b"], ["s"]),
            helper.make_node("Cos", ["b"], ["t"]),
            helper.make_node("MatMul", ["s", "w"], ["u"]),
            helper.make_node("MatMul", ["t", "w"], ["v"]),
            helper.make_node("Add", ["u", "v"], ["y"]),
        ],
        {"ids": ("int64", [5])},
        {"y": (F32, [5, 4])},
        {"f": frequencies, "last": np.array([1]), "w": np.eye(4, dtype=F32)},
    )
    mod = import_model(model, FusionConfig(precision="bf16")).mod
    ids = np.array([3, 999, 513, 257, 1001])
    (expected,) = onnxruntime_run(model, ids=ids)
    np.testing.assert_allclose(run(mod, ids), expected, atol=0.02)


@pytest.mark.parametrize(
    "mask",
    [
        [
            helper.make_node("Where", ["m", "zero", "low"], ["a"]),
            helper.make_node("Add", ["b", "a"], ["c"]),
        ],
        [helper.make_node("Where", ["m", "b", "low"], ["c"])],
    ],
    ids=["added", "selected"],
)
def test_masks_stay_finite(mask, onnx_model, onnxruntime_run, run, rng):
    """A row that is masked altogether gives an even softmax, not NaN."""
    lowest = np.finfo(F32).min
    model = onnx_model(
        [
            helper.make_node("Mul", ["x", "x2"], ["b"]),
            *mask,
            helper.make_node("Relu", ["c"], ["d"]),
            helper.make_node("Add", ["c", "d"], ["e"]),
            helper.make_node("Softmax", ["e"], ["f"]),
            helper.make_node("MatMul", ["f", "w"], ["y"]),
        ],
        {"x": (F32, [3, 4]), "x2": (F32, [3, 4]), "m": ("bool", [3, 4])},
        {"y": (F32, [3, 4])},
        {"zero": np.float32(0), "low": np.float32(lowest), "w": np.eye(4, dtype=F32)},
    )
    mod = import_model(model, FusionConfig(precision="fp16", half_io=True)).mod
    x = rng.standard_normal((3, 4), dtype=F32)
    kept = np.array([[1, 1, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1]], bool)
    (expected,) = onnxruntime_run(model, x=x, x2=x, m=kept)
    result = run(mod, x.astype(F16), x.astype(F16), kept)
    np.testing.assert_allclose(result, expected, atol=4e-3)


def test_squares_do_not_overflow(onnx_model, onnxruntime_run, operators, run, rng):
    model = onnx_model(
        [
            helper.make_node("Mul", ["x", "x"], ["a"]),
            helper.make_node("ReduceMean", ["a", "last"], ["b"]),
            helper.make_node("Sqrt", ["b"], ["c"]),
            helper.make_node("Div", ["x", "c"], ["y"]),
        ],
        {"x": (F32, [3, 6])},
        {"y": (F32, [3, 6])},
        {"last": np.array([1])},
    )
    mod = import_model(model, FusionConfig(precision="fp16", half_io=True)).mod
    # One cast for both factors, so that a square can still be told from a product.
    assert operators(mod["main"])[:3] == ["astype", "multiply", "mean"]
    x = (1000 * rng.standard_normal((3, 6), dtype=F32)).astype(F16)
    (expected,) = onnxruntime_run(model, x=x.astype(F32))
    np.testing.assert_allclose(run(mod, x), expected, rtol=3e-3)


def test_guards_against_nan_do_not_round_what_they_guard(operators, run):
    """Exporters write where(isnan(softmax(x)), 0, softmax(x)); bfloat16 has no isnan in TVM."""

    @I.ir_module
    class Guarded:
        @R.function
        def main(x: R.Tensor((2, 2), F32)) -> R.Tensor((2, 2), F32):
            with R.dataflow():
                a = R.matmul(x, x)
                b = R.nn.softmax(a)
                c = R.isnan(b)
                d = R.where(c, R.const(0, F32), b)
                y = R.matmul(d, x)
                R.output(y)
            return y

    after = ToHalfPrecision("bf16")(Guarded)
    names = operators(after["main"])
    assert names == ["astype", "matmul", "nn.softmax", "isnan", "where", "astype", "matmul"]
    x = np.array([[0.5, -1], [0.25, 0.75]], F32)
    np.testing.assert_allclose(run(after, x), run(Guarded, x), rtol=2e-2, atol=1e-2)


def test_operators_it_does_not_know_keep_their_types(run, rng):
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((3, 4), F32))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(relax.op.matmul(x, relax.const(np.eye(4, dtype=F32))))
            halves = builder.emit(relax.op.split(y, 2, axis=1))
            joined = builder.emit(relax.op.concat([halves[0], halves[1]], axis=1))
            called = builder.emit_te(topi.add, joined, joined)
            sorted_ = builder.emit(relax.op.sort(called))
            out = builder.emit_output(relax.Tuple([sorted_, called]))
        builder.emit_func_output(out)
    before = builder.get()
    after = ToHalfPrecision("fp16")(before)
    relax.analysis.well_formed(after)
    assert after["main"].ret_ty.fields[0].dtype.dtype == F32
    data = rng.standard_normal((3, 4), dtype=F32)
    for result, expected in zip(run(after, data), run(before, data), strict=True):
        np.testing.assert_allclose(result, expected, rtol=2e-3)


def test_what_has_the_shape_of_an_activation_has_none_of_its_values(run):
    """The running maximum of RWKV starts as -1e38, which would be infinite in float16."""

    @I.ir_module
    class Running:
        @R.function
        def main(x: R.Tensor((2, 3), F32)) -> R.Tensor((2, 3), F32):
            with R.dataflow():
                zeros = R.full_like(x, R.const(0, F32), dtype=F32)
                low = R.subtract(zeros, R.const(1e38, F32))
                top = R.maximum(low, x)
                y = R.subtract(low, top)
                R.output(y)
            return y

    after = ToHalfPrecision("fp16", half_io=True)(Running)
    found = run(after, np.array([[0.5, -1, 3], [-9, 0, 4]], F16)).astype(F32)
    np.testing.assert_allclose(found, np.full((2, 3), -65504), atol=64)


def test_branches_get_the_types_of_the_model(run):
    @I.ir_module
    class Branches:
        @R.function
        def main(x: R.Tensor((2, 2), F32), c: R.Tensor((), "bool")) -> R.Tensor((2, 2), F32):
            with R.dataflow():
                a = R.matmul(x, x)
                R.output(a)
            if c:
                t = R.matmul(a, x)
                r = R.exp(t)
            else:
                r = R.nn.relu(a)
            with R.dataflow():
                y = R.matmul(r, r)
                R.output(y)
            return y

    after = ToHalfPrecision("fp16")(Branches)
    relax.analysis.well_formed(after)
    x = np.array([[0.5, -1], [0.25, 0.75]], F32)
    for condition in (True, False):
        flag = np.array(condition)
        np.testing.assert_allclose(
            run(after, x, flag), run(Branches, x, flag), rtol=5e-3, atol=1e-3
        )


def test_casts_of_the_model_between_float_types_are_redecided(operators):
    @I.ir_module
    class Cast:
        @R.function
        def main(x: R.Tensor((2, 2), F32)) -> R.Tensor((2, 2), F16):
            with R.dataflow():
                a = R.exp(x)
                b = R.astype(a, F16)
                c = R.astype(b, F32)
                d = R.exp(c)
                y = R.astype(d, F16)
                R.output(y)
            return y

    after = ToHalfPrecision("fp16")(Cast)
    assert operators(after["main"]) == ["exp", "exp", "astype"]


def test_functions_that_are_not_ours_stay():
    @I.ir_module
    class Foreign:
        @R.function
        def group(x: R.Tensor((4, 4), F32)) -> R.Tensor((4, 4), F32):
            R.func_attr({"Codegen": "somebody"})
            with R.dataflow():
                y = R.matmul(x, x)
                R.output(y)
            return y

    assert ToHalfPrecision("fp16")(Foreign)["group"].same_as(Foreign["group"])
