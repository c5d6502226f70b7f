"""NaN and infinities: every operator passes on what numpy passes on, and so do fused ones."""

import math

import numpy as np
import pytest
import tvm
import tvm_ffi
from group_kernels import tensor
from nvcc import cuda_source
from relax_modules import module_of
from tvm import relax, tirx
from tvm.ir.transform import Sequential
from tvm.script import tirx as T

from tvm_fusion import transform
from tvm_fusion.device import parse
from tvm_fusion.lower.float_math import KeepNaNTests, PassNaNOn

pytestmark = pytest.mark.slow_beyond(2)

op = relax.op
INF, NAN = math.inf, math.nan


# Some laws hold for finite numbers only.
BUT_LAWS = (transform.Legalize, transform.FuseOperators, transform.ScheduleKernels)


def compiled(compute, *shapes, dtype="float32", stages=()):
    """Compile a function of tensors for this CPU, by all stages or some; a function of arrays."""
    return compiled_together({"main": compute}, *shapes, dtype=dtype, stages=stages)["main"]


def compiled_together(functions, *shapes, dtype="float32", stages=()):
    """Compile functions of tensors of the same shapes, by their names, in one module."""

    def written(compute):
        params = [tensor(f"x{i}", *shape, dtype=dtype) for i, shape in enumerate(shapes)]
        return params, compute(*params)

    target = parse("cpu").tvm_target()
    pipeline = "tvm_fusion"
    if stages:
        pipeline = Sequential([stage() for stage in (*stages, transform.LowerToVM)])
    with target:
        executable = tvm.compile(
            module_of({name: written(compute) for name, compute in functions.items()}),
            target,
            relax_pipeline=pipeline,
            tir_pipeline="tvm_fusion",
        )
    machine = relax.VirtualMachine(executable, tvm.cpu())

    def function(name):
        return lambda *arrays: machine[name](*map(tvm.runtime.tensor, arrays)).numpy()

    return {name: function(name) for name in functions}


def check(cases, *arrays, rtol=1e-5, atol=0.0, wide=False):
    """Compare operators with functions of arrays: pairs of them, by their names."""
    functions = {name: compute for name, (compute, _) in cases.items()}
    shapes, dtype = [x.shape for x in arrays], str(arrays[0].dtype)
    found = compiled_together(functions, *shapes, dtype=dtype)
    for name, (_, expected) in cases.items():
        with np.errstate(all="ignore"):
            wanted = expected(*(x.astype("float64") if wide else x for x in arrays))
        got = found[name](*arrays)
        np.testing.assert_allclose(got, wanted, rtol=rtol, atol=atol, err_msg=name)


def drawn(shape, dtype="float32", share=0.2):
    """Draw numbers of which a share is NaN, infinite or minus infinite."""
    rng = np.random.default_rng(np.prod(shape))
    special = rng.choice([NAN, INF, -INF], shape)
    return np.where(rng.random(shape) < share, special, rng.standard_normal(shape)).astype(dtype)


ROWS = np.stack(
    [
        drawn((37,)),
        np.full(37, -INF),
        np.full(37, INF),
        np.where(np.arange(37) == 5, 1.0, -INF),
        np.where(np.arange(37) % 8 == 3, -NAN, np.where(np.arange(37) < 2, INF, 0.5)),
        np.where(np.arange(37) == 36, NAN, 0.0),
        np.where(np.arange(37) % 2, 0.0, -0.0),
    ]
).astype("float32")

ELEMENTWISE = {
    "relu": (op.nn.relu, lambda x: np.maximum(x, 0)),
    "clip": (lambda x: op.clip(x, -0.5, 0.7), lambda x: np.clip(x, -0.5, 0.7)),
    "relu_of_sum": (lambda x: op.nn.relu(x + x), lambda x: np.maximum(x + x, 0)),
    "hard_swish": (
        lambda x: x * op.clip(x + relax.const(3.0, x.ty.dtype.dtype), 0, 6),
        lambda x: x * np.clip(x + 3, 0, 6),
    ),
    "leaky_relu": (
        lambda x: op.nn.leakyrelu(x, 0.1),
        lambda x: np.where(x > 0, x, x * 0.1),
    ),
    "not_equal": (
        lambda x: op.where(op.not_equal(x, x), op.ones_like(x), x),
        lambda x: np.where(np.isnan(x), np.ones_like(x), x),
    ),
    "equal": (
        lambda x: op.astype(op.equal(x, x), x.ty.dtype.dtype),
        lambda x: np.equal(x, x).astype(x.dtype),
    ),
    "chosen": (
        lambda x: op.where(op.greater(x, op.zeros_like(x)), x, op.zeros_like(x)),
        lambda x: np.where(x > 0, x, 0),
    ),
    "not_less": (
        lambda x: op.astype(op.logical_not(op.less(x, op.ones_like(x))), x.ty.dtype.dtype),
        lambda x: (~(x < 1)).astype(x.dtype),
    ),
}


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_elementwise(dtype):
    check(ELEMENTWISE, drawn((3, 37), dtype), rtol=2e-3)


PAIRS = {
    "maximum": (op.maximum, np.maximum),
    "minimum": (op.minimum, np.minimum),
    "of_computed_ones": (
        lambda x, y: op.maximum(op.minimum(x + y, x * y), op.exp(x)),
        lambda x, y: np.maximum(np.minimum(x + y, x * y), np.exp(x)),
    ),
    "absorbed": (
        lambda x, y: op.maximum(x, op.minimum(x, y)),
        lambda x, y: np.maximum(x, np.minimum(x, y)),
    ),
    "within_bounds": (
        lambda x, y: op.maximum(op.nn.relu(x) + op.ones_like(x), op.sigmoid(y)),
        lambda x, y: np.maximum(np.maximum(x, 0) + 1, 1 / (1 + np.exp(-y))),
    ),
    "smaller_chosen": (
        lambda x, y: op.where(op.less(x, y), x, y),
        lambda x, y: np.where(x < y, x, y),
    ),
}


def test_of_two_tensors():
    check(PAIRS, drawn((5, 37)), drawn((5, 37))[::-1].copy())


def reduction(name, axis):
    return lambda x: getattr(op, name)(x, axis), lambda x: getattr(np, name)(x, axis)


@pytest.mark.slow
@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize("axis", [0, 1])
def test_reductions(axis):
    x = ROWS if axis else np.ascontiguousarray(ROWS.T)
    check({name: reduction(name, axis) for name in ("max", "min", "argmax", "argmin")}, x, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_places_in_other_types(dtype):
    x = np.concatenate([ROWS.astype(dtype), drawn((4, 37), dtype, 0.02)])
    check({name: reduction(name, -1) for name in ("argmax", "argmin")}, x, rtol=0)


@pytest.mark.parametrize("padding", [0, 1])
def test_max_pool(padding):
    x = drawn((1, 3, 9, 11), share=0.05)
    x[0, 1] = -INF
    inside = np.pad(x, [(0, 0), (0, 0), *[(padding, padding)] * 2], constant_values=-INF)
    windows = np.lib.stride_tricks.sliding_window_view(inside, (3, 3), (2, 3))[:, :, ::2, ::2]
    pool = compiled(lambda x: op.nn.max_pool2d(x, (3, 3), (2, 2), padding), x.shape)
    np.testing.assert_array_equal(pool(x), windows.max((-2, -1)))


def softmax(x):
    with np.errstate(invalid="ignore"):
        powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


ROW_FUNCTIONS = {
    "softmax": (op.nn.softmax, softmax),
    "log_softmax": (op.nn.log_softmax, lambda x: np.log(softmax(x))),
    "mean": (lambda x: op.mean(x, -1), lambda x: x.mean(-1)),
    "variance": (lambda x: op.variance(x, -1), lambda x: x.var(-1)),
    "masked_sum": (
        lambda x: op.sum(op.exp(x - op.max(x, -1, keepdims=True)), -1),
        lambda x: np.exp(x - x.max(-1, keepdims=True)).sum(-1),
    ),
}


def test_rows():
    x = np.concatenate([ROWS, np.random.default_rng(3).standard_normal((2, 37))]).astype("float32")
    x[7, 4:9] = -INF
    check(ROW_FUNCTIONS, x, rtol=1e-5, atol=1e-6, wide=True)


def test_exponentials_beside_their_maximum_are_nan():
    """Nothing of a row is divided by its sum here: the maximum itself has to be NaN."""
    x = drawn((6, 37), share=0.01)
    compute = lambda x: op.exp(x - op.max(x, -1, keepdims=True))  # noqa: E731
    with np.errstate(invalid="ignore"):
        wanted = np.exp(x - x.max(-1, keepdims=True))
    assert np.isnan(wanted).any()
    np.testing.assert_allclose(compiled(compute, x.shape)(x), wanted, rtol=1e-5)


def test_attention():
    q, k, v = (np.random.default_rng(i).standard_normal((2, 40, 16)) for i in range(3))
    q[0, 7, 3] = NAN
    k[1, 5, 2] = NAN
    scores = softmax(q @ k.transpose(0, 2, 1))

    def compute(q, k, v):
        return op.matmul(op.nn.softmax(op.matmul(q, op.permute_dims(k, [0, 2, 1]))), v)

    found = compiled(compute, *[q.shape] * 3)(*(a.astype("float32") for a in (q, k, v)))
    np.testing.assert_allclose(found, scores @ v, rtol=1e-3, atol=1e-4)


# What TVM does ----------------------------------------------------------------------------------


@T.prim_func(s_tir=True)
def extrema(
    a: T.Buffer((8,), "float32"), b: T.Buffer((8,), "float32"), out: T.Buffer((3, 8), "float32")
):
    for i in range(8):
        out[0, i] = T.max(a[i], T.float32(0))
        out[1, i] = T.max(a[i], b[i])
        out[2, i] = T.Select(a[i] != b[i], T.float32(1), T.float32(0))


def run(func, pipeline):
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    build = tvm.tirx.build(mod, target=parse("cpu").tvm_target(), pipeline=pipeline)
    arrays = [np.array([NAN, 1, NAN, 2] * 2), np.array([1, NAN, NAN, 3] * 2), np.zeros((3, 8))]
    tensors = [tvm.runtime.tensor(a.astype("float32")) for a in arrays]
    build["main"](*tensors)
    return tensors[-1].numpy()[:, :4]


WANTED = [[NAN, 1, NAN, 2], [NAN, NAN, NAN, 3], [1, 1, 1, 1]]


def test_tvm_loses_nan():
    """Fails where TVM's code generator passes NaN on: then PassNaNOn is no longer needed."""
    found = run(extrema, "default")
    assert not np.isnan(found[0]).any()
    assert np.isnan(found[1]).sum() < 3
    np.testing.assert_array_equal(found[2], [0, 0, 0, 1])


def test_nan_is_passed_on():
    np.testing.assert_array_equal(run(extrema, "tvm_fusion"), WANTED)


def test_tvm_simplifies_tests_of_nan():
    """Fails where TVM's simplifier knows NaN: then KeepNaNTests is no longer needed."""
    x, y = tirx.Var("x", "float32"), tirx.Var("y", "float32")
    simplify = tvm.sym.Analyzer().simplify
    assert not bool(simplify(x != x))
    assert isinstance(simplify(tirx.Not(x < y)), tirx.LE)
    zero = tirx.const(0, "float32")
    assert isinstance(simplify(tirx.Mul(x, zero)), tirx.FloatImm)
    assert isinstance(simplify(tirx.Div(zero, x)), tirx.FloatImm)
    with pytest.raises(tvm.error.InternalError, match="Divide by zero"):
        simplify(tirx.Div(x, zero))
    assert simplify(tirx.Sub(tirx.Add(x, y), y)).same_as(x)
    assert isinstance(simplify(tirx.Sub(x, x)), tirx.FloatImm)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_zeros_make_products_and_quotients_nan(dtype):
    """Of operators that are fused, and whose zeros are numbers then."""

    def compute(x):
        zeros = op.zeros_like(x)
        parts = [op.multiply(x, zeros), op.divide(x, zeros), op.divide(zeros, x)]
        return op.concat([*parts, op.multiply(x, op.negative(zeros))], 0)

    x = np.array([2, -3, 0, -0.0, INF, -INF, NAN, 0.5, 7], dtype)
    zeros = np.zeros(9, dtype)
    with np.errstate(all="ignore"):
        right = np.concatenate([x * zeros, x / zeros, zeros / x, x * -zeros])
    found = compiled(compute, x.shape, dtype=dtype, stages=BUT_LAWS)(x)
    np.testing.assert_array_equal(found.astype("float64"), right.astype("float64"))
    signs = np.signbit(found.astype("float64")), np.signbit(right.astype("float64"))
    is_zero = right == 0
    np.testing.assert_array_equal(signs[0][is_zero], signs[1][is_zero])


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_what_a_mask_leaves_out_makes_products_nan(dtype):
    def compute(x):
        return op.permute_dims(op.multiply(op.triu(x), x))

    x = drawn((37, 8), dtype)
    with np.errstate(invalid="ignore"):
        right = (np.triu(x) * x).T
    found = compiled(compute, x.shape, dtype=dtype, stages=BUT_LAWS)(x)
    np.testing.assert_array_equal(found, right)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_differences_round_and_are_nan(dtype):
    """Nothing cancels that was rounded, or is infinite."""

    def compute(x, y):
        total = op.add(x, y)
        parts = [op.subtract(x, x), op.subtract(total, y), op.subtract(total, x)]
        parts += [op.subtract(y, total), op.subtract(op.where(op.less(x, y), x, y), y)]
        return op.concat(parts, 0)

    x, y = (drawn((67,), dtype, share=0.1) for _ in range(2))
    y = (y * 300).astype(dtype)
    with np.errstate(invalid="ignore"):
        total = x + y
        right = [x - x, total - y, total - x, y - total, np.where(x < y, x, y) - y]
    found = compiled(compute, x.shape, y.shape, dtype=dtype, stages=BUT_LAWS)(x, y)
    right = np.concatenate(right)
    np.testing.assert_array_equal(found.astype("float64"), right.astype("float64"))


def test_a_bound_takes_one_instruction():
    @T.prim_func(s_tir=True)
    def relu(a: T.Buffer((64,), "float32"), out: T.Buffer((64,), "float32")):
        for i in T.vectorized(64):
            out[i] = T.max(a[i], T.float32(0))

    mod = tvm.IRModule({"main": relu.with_attr("global_symbol", "main")})
    target = parse("cpu:skylake-avx512").tvm_target()
    with target:
        built = tvm.tirx.build(mod, target=target, pipeline="tvm_fusion")
    kernels = [m for m in (built, *built.imports) if m.kind == "llvm"]
    assembly = "".join(m.inspect_source("asm") for m in kernels)
    assert "vmaxps" in assembly
    assert "vcmp" not in assembly
    assert "blend" not in assembly


def test_vectors_of_halves_on_cuda_are_compared_without_vectors_of_truth_values():
    """TVM's generator refuses eight of these: the results of attention behind a clip."""

    @T.prim_func(s_tir=True)
    def clip(a: T.Buffer((64, 8), "float16"), out: T.Buffer((64, 8), "float16")):
        for i in T.thread_binding(64, "threadIdx.x"):
            for lane in T.vectorized(8):
                out[i, lane] = T.min(T.max(a[i, lane], T.float16(0)), T.float16(6))

    text = cuda_source(clip)
    assert "tvm_fusion_min_float16x8(tvm_fusion_max_float16x8(" in text


def test_vectors_on_cuda_are_negated_lane_by_lane():
    """C++ has ``!`` for scalars alone, which TVM's generator writes for vectors, too."""

    @T.prim_func(s_tir=True)
    def tests(
        a: T.Buffer((64, 2), "float32"),
        b: T.Buffer((64, 2), "bool"),
        out: T.Buffer((64, 2), "bool"),
    ):
        for i in T.thread_binding(64, "threadIdx.x"):
            for lane in T.vectorized(2):
                out[i, lane] = T.And(a[i, lane] != T.float32(1), T.Not(b[i, lane]))

    text = cuda_source(tests)
    assert "= !" not in text
    assert ".x!=" in text
    assert ".y!=" in text


def test_running_maxima_of_what_is_computed_are_no_choice_by_one_comparison():
    @T.prim_func(s_tir=True)
    def largest(a: T.Buffer((8,), "float32"), out: T.Buffer((1,), "float32")):
        for i in range(8):
            out[0] = T.max(out[0], a[i] + T.float32(1))

    stores = []
    mod = PassNaNOn()(tvm.IRModule({"main": largest}))
    tvm_ffi.structural_walk(mod["main"].body, (tirx.BufferStore, lambda s: stores.append(s)))
    assert isinstance(stores[0].value, tirx.Select)
    assert isinstance(stores[0].value.condition, tirx.Or)


def test_integers_are_left_alone():
    @T.prim_func(s_tir=True)
    def integers(a: T.Buffer((8,), "int32"), out: T.Buffer((8,), "int32")):
        for i in range(8):
            out[i] = T.if_then_else(a[i] != T.max(a[i], 3), 1, a[i])

    mod = tvm.IRModule({"main": integers})
    for step in (PassNaNOn(), KeepNaNTests()):
        tvm.ir.assert_structural_equal(step(mod), mod)


def test_hidden_zeros_are_numbers_on_cuda():
    @T.prim_func(s_tir=True)
    def products(a: T.Buffer((32,), "float32"), out: T.Buffer((32,), "float32")):
        for i in T.thread_binding(32, thread="threadIdx.x"):
            # As `_tvm.simplifier` writes a product with zero, which TVM would take for zero.
            out[i] = a[i] * T.abs(T.reinterpret("float32", T.int32(-(2**31))))

    text = cuda_source(products)
    assert "fabsf(-0x0p+0f" in text
    assert "&(-2147483648)" not in text  # an address of a constant, which nvcc refuses
