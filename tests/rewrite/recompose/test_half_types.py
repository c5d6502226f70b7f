"""Operators written out over half types, with constants rounded to them or float32 inside."""

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
import tvm
from test_activations import GELU, GELU_TANH, NEAR_MISSES, SILU
from test_norms import norm, rms
from test_numerics import erf, gelu_tanh, softmax, standardized
from test_softmax import quotient
from tvm import relax
from tvm.ir import GenericConst
from tvm.target import Target
from tvm_ffi import structural_equal

from tests.rewrite.recompose.written import (
    check,
    check_stays,
    cleaned,
    const,
    module,
    op,
    recomposed,
    tensor,
)
from tvm_fusion import FusionConfig, transform
from tvm_fusion.core.decisions import recording
from tvm_fusion.pipeline import stages
from tvm_fusion.rewrite.recompose.matching.coefficient import Coefficient, is_close, rounded

NUMPY = {"float16": np.dtype("float16"), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
SHAPE = (5, 37)
AXES = ([1, 0, 2], [1, 2, 0], [1, 0, 2])  # of queries, keys and values


@pytest.fixture(params=NUMPY)
def dtype(request):
    return request.param


def in_half(write, dtype, *shapes):
    """The module that ``write`` makes, its tensors and constants of a half type."""
    mod = cleaned(module(write, *(tensor(*s) for s in shapes)))
    func, builder = mod["main"], relax.BlockBuilder()
    params = [relax.Var(p.name, tensor(*p.ty.shape.values, dtype=dtype)) for p in func.params]
    new = dict(zip(map(hash, func.params), params, strict=True))

    def operand(arg):
        if isinstance(arg, GenericConst):
            return relax.const(arg.value.numpy().astype(NUMPY[dtype]), dtype)
        return new.get(hash(arg), arg) if isinstance(arg, relax.Var) else arg

    with builder.function("main", params):
        with builder.dataflow():
            for binding in func.body.blocks[0].bindings:
                call = binding.value
                args = [operand(a) for a in call.args]
                new[hash(binding.var)] = builder.emit(relax.Call(call.op, args, call.attrs))
            result = builder.emit_output(new[hash(func.body.body)])
        builder.emit_func_output(result)
    return builder.get()


def test_a_constant_is_any_number_that_rounds_to_it(dtype):
    rng = np.random.default_rng()
    sizes = 10.0 ** np.arange(-6, 2).repeat(25)  # float16 has fewer digits below 6e-5, and ends
    for exact in rng.uniform(1, 10, 200) * sizes * rng.choice([-1, 1], 200):
        near = NUMPY[dtype].type(exact)
        other = np.nextafter(near, NUMPY[dtype].type(np.inf if near < exact else -np.inf))
        assert is_close(rounded(float(near), dtype), float(exact))
        middle = (float(near) + float(other)) / 2
        # Below a power of two, numbers lie twice as densely as above it.
        if abs(math.frexp(float(other))[0]) != 0.5 and abs(exact - middle) > 1e-4 * abs(exact):
            assert not is_close(rounded(float(other), dtype), float(exact))


def test_errors_of_constants_add_up():
    rng = np.random.default_rng()
    for _ in range(100):
        a, b = (Fraction(float(x)) for x in rng.uniform(0.5, 4, 2))
        x, y = (rounded(float(np.float16(float(v))), "float16") for v in (a, b))
        for found, exact in ((x * y, a * b), (x / y, a / b), (x - y, a - b), (2.0 * x, 2 * a)):
            assert isinstance(found, Coefficient)
            assert abs(Fraction(float(found)) - exact) <= found.error * 1.01 + 1e-12


@pytest.mark.parametrize(
    ("ways", "operator"),
    [(GELU, op.nn.gelu), (GELU_TANH, op.nn.gelu_tanh), (SILU, op.nn.silu)],
    ids=["gelu", "gelu_tanh", "silu"],
)
def test_every_way_of_writing_an_activation(ways, operator, dtype):
    for name, write in ways.items():
        found, _ = recomposed(in_half(write, dtype, SHAPE))
        expected = module(operator, tensor(*SHAPE, dtype=dtype))
        assert structural_equal(found["main"], cleaned(expected)["main"]), name


@pytest.mark.parametrize("name", sorted(NEAR_MISSES.keys() - {"shifted_clip", "high_clip"}))
def test_near_misses_stay(name, dtype):
    mod = in_half(NEAR_MISSES[name], dtype, SHAPE)
    found, _ = recomposed(mod)
    assert structural_equal(found["main"], cleaned(mod)["main"])


def test_a_slope_of_the_next_number_is_another_function():
    slope = const(1 + 2.0**-7, "bfloat16")
    half = tensor(*SHAPE, dtype="bfloat16")
    check_stays(lambda x: op.multiply(x, op.sigmoid(op.multiply(slope, x))), half)


def test_gelu_with_the_error_function_in_float32(dtype):
    def write(x):
        inner = op.divide(x, const(math.sqrt(2), dtype))
        curve = op.add(op.erf(op.astype(inner, "float32")), const(1.0))
        wide = op.multiply(op.astype(x, "float32"), op.multiply(const(0.5), curve))
        return op.astype(wide, dtype)

    def expected(x):
        return op.nn.gelu(x)

    found, log = recomposed(module(write, tensor(*SHAPE, dtype=dtype)))
    assert [d.consumer for d in log if d.verdict == "accepted"] == ["gelu"]
    assert "nn.gelu" in found.script()


def test_conversion_to_a_half_type_leaves_gelu_whole(dtype):
    mod = module(GELU["halved"], tensor(*SHAPE))
    precision = {"float16": "fp16", "bfloat16": "bf16"}[dtype]
    mod = transform.ToHalfPrecision(precision, half_io=True)(cleaned(mod))
    _, log = recomposed(mod)
    assert [d.consumer for d in log if d.verdict == "accepted"] == ["gelu"]


def attention(dtype, wide="float32", scale=0.25):
    """Queries, keys and values widened, as PyTorch decomposes its operator."""

    def write(q, k, v):
        q, k, v = (op.astype(x, wide) for x in (q, k, v))
        k = op.permute_dims(k, [0, 2, 1])
        q, k = (op.multiply(x, const(scale**0.5, wide)) for x in (q, k))
        weights = op.nn.softmax(op.matmul(q, k), -1)
        return op.astype(op.matmul(weights, v), dtype)

    return write


def test_attention_multiplies_half_operands(dtype):
    heads = [tensor(3, n, 8, dtype=dtype) for n in (7, 11, 11)]

    def expected(q, k, v):
        k = op.permute_dims(k, [0, 2, 1])
        scores = op.multiply(op.matmul(q, k, "float32"), const(0.25))
        weights = op.nn.softmax(scores, -1)
        return op.astype(op.matmul(weights, op.astype(v, "float32")), dtype)

    check(attention(dtype), expected, *heads)


def test_attention_rounds_its_operands_before_they_are_moved(dtype):
    def write(q, k, v):
        q, k, v = (op.permute_dims(x, axes) for x, axes in zip((q, k, v), AXES, strict=True))
        q, k = (op.astype(op.multiply(x, const(0.5)), dtype) for x in (q, k))
        weights = op.nn.softmax(op.matmul(q, k, "float32"), -1)
        return op.matmul(op.astype(weights, dtype), op.astype(v, dtype), "float32")

    found, _ = recomposed(module(write, *(tensor(n, 3, 8) for n in (7, 11, 11))))
    calls = [b.value for b in found["main"].body.blocks[0].bindings]
    names = [str(call.op.name) for call in calls]
    assert names.index("relax.permute_dims") > names.index("relax.astype")
    moved = [call for call in calls if call.op.name == "relax.permute_dims"]
    assert [[int(a) for a in call.attrs.axes] for call in moved] == [*AXES]
    assert {str(call.ty.dtype.dtype) for call in moved} == {dtype}
    scales = [call for call in calls if call.op.name == "relax.multiply"]
    assert len(scales) == 2  # both are as they were: before the rounding


def run(mod, arrays, rewrite):
    """Results in float64 of a module that is compiled for a CPU."""
    passes = [transform.NormalizeImport(), *stages(FusionConfig(rewrite=rewrite))]
    with Target("llvm"), recording() as log:
        mod = tvm.ir.transform.Sequential([*passes, transform.LowerToVM()])(mod)
        built = tvm.compile(mod, Target("llvm"), relax_pipeline=None, tir_pipeline="tvm_fusion")
    machine = relax.VirtualMachine(built, tvm.cpu())
    result = machine["main"](*map(tvm.runtime.tensor, arrays)).numpy()
    return result.astype("float64"), {d.code for d in log}


def softmax_attention(q, k, v):
    return softmax(q @ k.transpose(0, 2, 1) * 0.25) @ v


NUMERICS = {
    "gelu": (GELU["halved"], lambda x: x / 2 * (1 + erf(x / np.sqrt(2))), [SHAPE]),
    "gelu_tanh": (GELU_TANH["power"], gelu_tanh, [SHAPE]),
    "silu": (SILU["exponential"], lambda x: x / (1 + np.exp(-x)), [SHAPE]),
    "softmax": (quotient, softmax, [SHAPE]),
    "layer_norm": (norm, standardized, [(2, 5, 24)]),
    "rms_norm": (
        rms,
        lambda x, g: x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * g,
        [(2, 5, 24), (24,)],
    ),
    "attention": (None, softmax_attention, [(3, 7, 8), (3, 11, 8), (3, 11, 8)]),
}


@pytest.mark.parametrize("name", NUMERICS)
@pytest.mark.slow
def test_no_further_from_float64_than_written_out(name, dtype):
    write, reference, shapes = NUMERICS[name]
    rng = np.random.default_rng()
    arrays = [(2 * rng.standard_normal(s)).astype(NUMPY[dtype]) for s in shapes]
    if write is None:
        mod = module(attention(dtype), *(tensor(*s, dtype=dtype) for s in shapes))
    else:
        mod = in_half(write, dtype, *shapes)
    exact = reference(*(a.astype("float64") for a in arrays))
    found, codes = run(mod, arrays, "greedy")
    assert "recomposed" in codes
    written_out, codes = run(mod, arrays, "none")
    assert "recomposed" not in codes
    rounding = float(ml_dtypes.finfo(NUMPY[dtype]).eps) / 2
    limit = np.maximum(1.01 * rounding * np.abs(exact), np.abs(written_out - exact).max())
    assert (np.abs(found - exact) <= limit + 1e-7).all()
