"""Vector arithmetic of CPU kernels on numbers that are none."""

import math

import ml_dtypes
import numpy as np
import pytest
import tvm
from relax_modules import main_module
from tvm import relax, tirx

from tvm_fusion.core.tir.loops import block, loop
from tvm_fusion.device import parse
from tvm_fusion.schedule.math.vector_functions import ZERO, decay, half_decay, unit_decay

pytestmark = pytest.mark.slow_beyond(4)

LEAST = -87.33654  # exponentials of smaller numbers are no normal numbers


def run(body, x):
    target = parse("cpu").tvm_target()
    param = relax.Var("x", relax.TensorType(x.shape, "float32"))
    executable = tvm.compile(
        main_module([param], body), target, relax_pipeline="tvm_fusion", tir_pipeline="tvm_fusion"
    )
    return relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(x)).numpy()


def guarded(emit, x):
    """What PyTorch's exporter writes around softmax: rows without any key give zeros."""
    probabilities = emit(relax.op.nn.softmax(x))
    zero = relax.const(0.0, "float32")
    return relax.op.where(emit(relax.op.isnan(probabilities)), zero, probabilities)


@pytest.mark.parametrize("columns", [1, 5, 67, 128])
def test_fully_masked_rows_give_zeros(columns):
    x = np.random.default_rng(0).normal(size=(9, columns)).astype("float32")
    x[3] = -np.inf
    x[5, 0] = -np.inf
    with np.errstate(all="ignore"):
        wide = np.exp(x.astype("float64") - x.max(-1, keepdims=True))
        expected = wide / wide.sum(-1, keepdims=True)
    np.testing.assert_allclose(run(guarded, x), np.nan_to_num(expected), rtol=1e-5, atol=1e-7)


def test_isnan_tells_nan_from_everything_else():
    special = [np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, -3e38, 1.0]
    x = np.tile(np.array(special, "float32"), 15)

    def body(emit, value):
        one, two = relax.const(1.0, "float32"), relax.const(2.0, "float32")
        return relax.op.where(emit(relax.op.isnan(value)), one, two)

    np.testing.assert_array_equal(run(body, x), np.where(np.isnan(x), 1, 2))


def test_exponentials_of_exponentials_compile():
    """TVM never comes to an end with four of them as arithmetic, one in the other."""
    x = np.random.default_rng(0).normal(size=(3, 64)).astype("float32")

    def body(emit, value):
        for _ in range(4):
            value = emit(relax.op.exp(emit(relax.op.sin(value))))
        return value

    expected = x.astype("float64")
    for _ in range(4):
        expected = np.exp(np.sin(expected))
    np.testing.assert_allclose(run(body, x), expected, rtol=1e-5)


def test_exponentials_that_lanes_share_compile():
    """TVM visits their bindings twice under a product where a call in them is no vector."""
    x = np.random.default_rng(0).normal(size=(7, 127)).astype("float32")

    def body(emit, value):
        total = emit(relax.op.sum(value, [1], keepdims=True))
        shared = emit(relax.op.exp(emit(relax.op.subtract(emit(relax.op.erf(total)), total))))
        squashed = emit(relax.op.multiply(shared, emit(relax.op.max(value))))
        return emit(relax.op.multiply(value, squashed))

    wide = x.astype("float64")
    total = wide.sum(1, keepdims=True)
    expected = wide * np.exp(np.vectorize(math.erf)(total) - total) * wide.max()
    np.testing.assert_allclose(run(body, x), expected, rtol=1e-4)


@pytest.mark.parametrize("function", ["tan", "tanh"])
def test_what_a_function_repeats_binds_nothing(function):
    """TVM uses their argument several times, and lowers a symbolic division anew in each."""
    rows, columns = (tirx.Var(name, "int64") for name in "nm")
    x = relax.Var("x", relax.TensorType((rows, columns, 1), "float32"))

    def body(emit, x):
        squashed = emit(getattr(relax.op, function)(emit(relax.op.erf(x))))
        return [squashed, relax.op.permute_dims(emit(relax.op.square(x)), [1, 2, 0])]

    target = parse("cpu").tvm_target()
    executable = tvm.compile(
        main_module([x], body), target, relax_pipeline="tvm_fusion", tir_pipeline="tvm_fusion"
    )
    data = np.random.default_rng(0).normal(size=(9, 6, 1)).astype("float32")
    found = relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(data))
    expected = getattr(np, function)(np.vectorize(math.erf)(data.astype("float64")))
    np.testing.assert_allclose(found[0].numpy(), expected, rtol=1e-5)


def test_truth_values_as_numbers_compile():
    """TVM's code generation stops at a binding that casts a vector of them."""
    x = np.array([np.nan, 1.0, -np.inf, 0.0] * 16, "float32")

    def body(emit, value):
        return emit(relax.op.exp(emit(relax.op.astype(emit(relax.op.isnan(value)), "float32"))))

    np.testing.assert_allclose(run(body, x), np.where(np.isnan(x), math.e, 1), rtol=1e-6)


SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, -1e-45, 3e38, -3e38]
FUNCTIONS = {  # with their largest error in units of the last place
    "exp": (np.exp, 2),
    "erf": (np.vectorize(math.erf), 6),
    "tanh": (np.tanh, 6),
    "sigmoid": (lambda x: 1 / (1 + np.exp(-x)), 3),
    "log": (np.log, 2),
    "sin": (np.sin, 2),
    "cos": (np.cos, 2),
    "atan": (np.arctan, 3),
    "asin": (np.arcsin, 4),
    "acos": (np.arccos, 4),
    "round": (np.rint, 0),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_over_the_whole_range(name):
    function, most = FUNCTIONS[name]
    sizes = 10.0 ** np.linspace(-45, 38.5, 20001)
    around = np.linspace(-110, 110, 40001)
    bits = np.random.default_rng().integers(0, 1 << 32, 1 << 16, np.uint32).view("float32")
    quarters = np.arange(1, 20001) * (np.pi / 2)
    below_limit = 2.0**76 * np.linspace(0.9, 1, 20001)  # where sines take the next row of 2 / pi
    parts = [sizes, -sizes, around, around / 20, around / 110, quarters, below_limit, SPECIAL]
    x = np.concatenate(parts)
    x = np.concatenate([x.astype("float32"), bits])
    found = run(lambda emit, value: emit(getattr(relax.op, name)(value)), x)
    with np.errstate(all="ignore"):
        exact = function(x.astype("float64"))
        right = exact.astype("float32")
    plain = np.isfinite(right)
    np.testing.assert_array_equal(found[~plain], right[~plain])
    np.testing.assert_array_equal(np.signbit(found[x == 0]), np.signbit(right[x == 0]))
    unit = np.spacing(np.maximum(np.abs(right[plain]), np.finfo("float32").tiny))
    if name == "sigmoid":  # what is no normal number may be 0
        unit = np.maximum(unit, np.finfo("float32").tiny / most)
    assert (np.abs(found[plain] - exact[plain]) / unit).max() <= most
    if name in ("erf", "tanh"):
        assert np.abs(found[plain]).max() == 1


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sigmoids_of_half_types_are_nearly_rounded_right(dtype):
    every = np.arange(1 << 16, dtype=np.uint16).view(np.dtype(dtype))
    wide = every.astype("float32")
    half = every[np.isfinite(wide) & (np.abs(wide) < 80)]
    param = relax.Var("x", relax.TensorType(half.shape, dtype))
    target = parse("cpu:x86-64-v3").tvm_target()
    with target:
        executable = tvm.compile(
            main_module([param], lambda emit, x: emit(relax.op.nn.silu(x))),
            target,
            relax_pipeline="tvm_fusion",
            tir_pipeline="tvm_fusion",
        )
    found = relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(half))
    x = half.astype("float64")
    exact = x / (1 + np.exp(-x))
    info = ml_dtypes.finfo(dtype)
    unit = 2.0 ** np.floor(np.log2(np.maximum(np.abs(exact), float(info.smallest_normal))))
    error = np.abs(found.numpy().astype("float64") - exact) / (unit * float(info.eps))
    assert error.max() < 0.52


@pytest.mark.parametrize("cpu", ["cpu", "cpu:x86-64-v2"])
@pytest.mark.parametrize("function", [decay, unit_decay, half_decay])
def test_decay_over_its_whole_range(function, cpu):
    """With fused multiply-adds and without them."""
    near, far = np.linspace(ZERO, 0, 1 << 19), -(10.0 ** np.linspace(-45, 38.5, 1 << 12))
    positive = -far[far > -88] if function is decay else []
    x = np.concatenate([near, far, positive, [-np.inf, np.nan, -0.0, 0.0]])
    x = np.concatenate([x, np.zeros(-x.size % 64)]).astype("float32")
    extent = tirx.IntImm("int64", x.size)
    given, result = (tirx.decl_buffer((extent,), "float32", n, layout=None) for n in "xy")
    body = loop(
        "i", extent, lambda i: tirx.BufferStore(result, function(tirx.BufferLoad(given, [i])), [i])
    )
    func = tirx.PrimFunc([given, result], block("root", body))
    func = func.with_attrs({"s_tir": True, "global_symbol": "main", "tirx.noalias": True})
    built = tvm.compile(
        tvm.IRModule({"main": func}), parse(cpu).tvm_target(), tir_pipeline="tvm_fusion"
    )
    out = tvm.runtime.tensor(np.full_like(x, 99))
    built["main"](tvm.runtime.tensor(x), out)
    found, exact = out.numpy(), np.exp(x.astype("float64"))
    normal, small = x >= LEAST, x < LEAST
    unit = np.spacing(exact[normal].astype("float32"))
    if function is unit_decay:
        unit = np.maximum(unit * (1 + np.abs(x[normal])), 2.0**-24)
    if function is half_decay:
        unit = exact[normal] * 2.0**-16
    assert (np.abs(found[normal] - exact[normal]) / unit).max() < (1.5 if function is decay else 1)
    assert (found[small] >= 0).all()
    assert (found[small] < np.finfo("float32").tiny).all()
    assert (found[x <= ZERO] == 0).all()
    np.testing.assert_array_equal(np.isnan(found), np.isnan(x))
