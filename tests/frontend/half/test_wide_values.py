"""Values that stay in float32 at a half precision although several operators read them."""

import ml_dtypes
import numpy as np
import pytest
from relax_modules import main_module
from tvm import relax

from tvm_fusion.frontend.half.precision import ToHalfPrecision, meeting_values

op = relax.op
X, W = (
    relax.Var(name, relax.TensorType(shape, "float32"))
    for name, shape in (("x", (4, 8)), ("w", (8, 8)))
)
SCALE = relax.Var("scale", relax.TensorType((8,), "float32"))


def rounded(compute, dtype="bfloat16", **options):
    """Names of what is cast to a type, of values that ``compute`` emits by name."""
    mod = main_module([X, W, SCALE], compute)
    func = ToHalfPrecision("bf16", **options)(mod)["main"]
    casts = [
        binding.value.args[0].name
        for block in func.body.blocks
        for binding in block.bindings
        if isinstance(binding.value, relax.Call)
        and str(binding.value.op.name) == "relax.astype"
        and str(binding.value.attrs.dtype) == dtype
    ]
    return set(casts) - {"x", "w", "scale"}


def gelu(emit, x, w, scale):
    y = emit(op.matmul(x, w), "y")
    half = emit(op.multiply(y, relax.const(0.5, "float32")))
    erf = emit(op.erf(emit(op.divide(y, relax.const(1.414, "float32")))))
    one = emit(op.add(erf, relax.const(1.0, "float32")))
    return emit(op.matmul(emit(op.multiply(half, one), "gelu"), w))


def swish_and_mean(emit, x, w, scale):
    y = emit(op.matmul(x, w), "y")
    z = emit(op.multiply(y, emit(op.sigmoid(y))), "z")
    mean = emit(op.mean(z, [1], keepdims=True))
    return emit(op.matmul(emit(op.multiply(z, mean), "product"), w))


def returned(emit, x, w, scale):
    y = emit(op.matmul(x, w), "y")
    return emit(op.multiply(y, emit(op.sigmoid(y))))


def test_activation_functions_are_rounded_once():
    assert rounded(gelu) == {"gelu"}


def test_what_a_reduction_reads_as_well_is_rounded():
    """Two kernels read it."""
    assert rounded(swish_and_mean) == {"z", "product"}


@pytest.mark.parametrize(("compute", "count"), [(gelu, 1), (swish_and_mean, 1), (returned, 1)])
def test_values_that_meet(compute, count):
    assert len(meeting_values(main_module([X, W, SCALE], compute)["main"])) == count


def pre_norm(emit, x, w, scale):
    stream = emit(op.add(emit(op.matmul(x, w)), x), "stream")
    normed = emit(op.nn.layer_norm(stream, scale, scale, [-1]), "normed")
    return emit(op.add(stream, emit(op.matmul(normed, w))))


def post_norm(emit, x, w, scale):
    total = emit(op.add(emit(op.matmul(x, w)), x))
    stream = emit(op.nn.layer_norm(total, scale, scale, [-1]), "stream")
    return emit(op.add(stream, emit(op.matmul(stream, w))))


def rms_norm(emit, x, w, scale):
    stream = emit(op.add(emit(op.matmul(x, w)), x), "stream")
    mean = emit(op.mean(emit(op.multiply(stream, stream)), [1], keepdims=True))
    normed = emit(op.multiply(stream, emit(op.rsqrt(mean))), "normed")
    return emit(op.add(stream, emit(op.matmul(normed, w))))


@pytest.mark.parametrize("compute", [pre_norm, rms_norm])
def test_residual_streams_in_front_of_norms(compute):
    assert rounded(compute, wide_residuals=True) == {"normed"}
    assert rounded(compute) == {"stream", "normed"}


def operand_types(compute, name, **options):
    """Types in which calls of an operator read their operands, by call."""
    func = ToHalfPrecision("bf16", **options)(main_module([X, W, SCALE], compute))["main"]
    calls = (b.value for block in func.body.blocks for b in block.bindings)
    return [
        [str(arg.ty.dtype.dtype) for arg in call.args]
        for call in calls
        if isinstance(call, relax.Call) and str(call.op.name) == f"relax.{name}"
    ]


def test_a_stream_that_a_norm_made_is_stored_in_both_types():
    """The product reads it rounded, the sum behind as it is."""
    assert operand_types(post_norm, "matmul") == 2 * [["bfloat16"] * 2]
    assert rounded(post_norm, wide_residuals=True) == rounded(post_norm) == {"stream"}
    assert rounded(post_norm, "float32")  # by the sum, which reads what was rounded
    assert not rounded(post_norm, "float32", wide_residuals=True)


def test_sums_of_half_values_are_computed_in_float32():
    """Such as embeddings: one rounding in the place of one for each operator."""

    def compute(emit, x, w, scale):
        y = emit(op.matmul(x, w))
        low, high = (emit(of(y, [1], keepdims=True)) for of in (op.min, op.max))
        return emit(op.add(low, high))

    assert operand_types(compute, "add") == [["bfloat16"] * 2]
    assert operand_types(compute, "add", wide_residuals=True) == [["float32"] * 2]


def test_comparisons_round_nothing():
    def masked(emit, x, w, scale):
        y = emit(op.matmul(x, w), "y")
        hidden = emit(op.equal(y, relax.const(float("-inf"), "float32")))
        soft = emit(op.nn.softmax(y), "soft")
        return emit(op.where(hidden, relax.const(0.0, "float32"), soft))

    assert rounded(masked) == {"y"}
    assert rounded(masked, wide_residuals=True) == set()


@pytest.mark.parametrize("is_half", [False, True])
def test_rows_of_embeddings(is_half):
    """They stay in float32, unless they lose nothing."""
    table = np.random.default_rng().standard_normal((6, 8)).astype("float32")
    if is_half:
        table = table.astype(ml_dtypes.bfloat16).astype("float32")

    def compute(emit, x, w, scale):
        places = relax.const(np.array([3, 1, 5, 0]), "int64")
        row = emit(op.take(relax.const(table), places, 0))
        return emit(op.nn.layer_norm(row, scale, scale, [-1]))

    found = operand_types(compute, "take", wide_residuals=True)
    assert found == [["bfloat16" if is_half else "float32", "int64"]]
    assert operand_types(compute, "take") == [["bfloat16", "int64"]]


def test_a_table_that_is_a_weight_too_is_stored_once():
    table = relax.const(np.random.default_rng().standard_normal((8, 8)).astype("float32"))

    def compute(emit, x, w, scale):
        row = emit(op.take(table, relax.const(np.array([3, 1]), "int64"), 0))
        return emit(op.matmul(emit(op.nn.layer_norm(row, scale, scale, [-1])), table))

    assert operand_types(compute, "take", wide_residuals=True) == [["bfloat16", "int64"]]
