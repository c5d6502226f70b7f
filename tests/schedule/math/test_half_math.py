"""Fast functions of half types: within one unit in the last place, and nowhere else."""

import ctypes
import math
import shutil
import subprocess

import ml_dtypes
import numpy as np
import pytest
import tvm
import tvm_ffi
from group_kernels import CPU, CUDA, cuda_kernel, group, kernel, tensor
from nvcc import machine_code, needs_nvcc
from tvm import relax, tirx

from tvm_fusion.core.tir.loops import block, index, loop, threads
from tvm_fusion.schedule.elementwise.template import Elementwise
from tvm_fusion.schedule.math.half_math import FUNCTIONS, PREFIX, HalfMath, source

op = relax.op
HALVES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
halves = pytest.mark.parametrize("dtype", HALVES)

# The instructions of an NVIDIA GPU: any result within the error that PTX's manual allows, and no
# subnormal numbers where they flush them.
HOST = """
#include <math.h>
#define TVM_FUSION_HALF_INSTRUCTIONS
#define __forceinline__ static inline
#define __device__
static double power_error, ratio_error;
static float flushed(double x) { return fabs(x) < 0x1p-126 ? copysign(0.0, x) : (float)x; }
static float tvm_fusion_ex2(float x) { return flushed(exp2(flushed(x)) * (1 + power_error)); }
static float tvm_fusion_rcp(float x) { return flushed(1 / (double)flushed(x) * (1 + ratio_error)); }
static float tvm_fusion_div(float x, float y) { return (double)x / y * (1 + power_error); }
static float tvm_fusion_positive(float x) { return x < 0.0f ? 0.0f : x; }
static float tvm_fusion_part(float x) { return x > 0.0f ? fminf(x, 1.0f) : 0.0f; }
static float tvm_fusion_clip(float x, float limit) {
  return x > limit ? limit : x < -limit ? -limit : x;
}
"""
LOOP = """
void %s(const float *x, float *y, int n, double power, double ratio) {
  power_error = power, ratio_error = ratio;
  for (int i = 0; i < n; ++i) y[i] = %s(x[i]);
}
"""


@pytest.fixture(scope="module")
def functions(tmp_path_factory):
    """The CUDA text, compiled for the host: name to function of an array and the errors."""
    folder = tmp_path_factory.mktemp("half")
    names = [n for n in FUNCTIONS if n != "div"]
    text = HOST + "".join(map(source, FUNCTIONS))
    text += "".join(LOOP % (f"all_{n}", PREFIX + n) for n in names)
    (folder / "half.c").write_text(text)
    compiler = shutil.which("cc") or shutil.which("gcc")
    command = [compiler, "-O1", "-ffp-contract=off", "-shared", "-fPIC", "half.c"]
    subprocess.run([*command, "-o", "half.so", "-lm"], cwd=folder, check=True)
    library = ctypes.CDLL(str(folder / "half.so"))

    def function(name):
        def apply(x, power=0.0, ratio=0.0):
            x, y = np.ascontiguousarray(x, np.float32), np.empty(x.shape, np.float32)
            pointers = (a.ctypes.data_as(ctypes.c_void_p) for a in (x, y))
            errors = ctypes.c_double(power), ctypes.c_double(ratio)
            getattr(library, f"all_{name}")(*pointers, ctypes.c_int(x.size), *errors)
            return y

        return apply

    return {name: function(name) for name in names}


def finite(dtype):
    """All numbers of a half type."""
    x = np.arange(1 << 16, dtype=np.uint16).view(HALVES[dtype])
    return x[np.isfinite(x.astype(np.float32))]


def off_by(found, exact, dtype):
    """Largest error in units of the last place of the exact result; at 0, of the smallest number.

    Parameters
    ----------
    found : ndarray of float32
        Rounded here.
    exact : ndarray of float64
        Beyond the type's range, its infinity is right.
    """
    info = ml_dtypes.finfo(HALVES[dtype])
    with np.errstate(over="ignore"):
        rounded = found.astype(HALVES[dtype]).astype(np.float64)
        right = exact.astype(HALVES[dtype]).astype(np.float64)
    plain = np.isfinite(right)
    np.testing.assert_array_equal(rounded[~plain], right[~plain])
    rounded, exact = rounded[plain], exact[plain]
    exponent = np.frexp(np.maximum(np.abs(exact), float(info.smallest_normal)))[1] - 1
    return (np.abs(rounded - exact) / np.exp2(exponent - float(info.nmant))).max()


def sigmoid(x):
    return np.where(x < 0, np.exp(np.minimum(x, 0)), 1) / (1 + np.exp(-np.abs(x)))


def normal_cdf(x):
    return np.vectorize(math.erfc)(-x / math.sqrt(2)) / 2


EXACT = {
    "exp": np.exp, "sigmoid": sigmoid, "tanh": np.tanh, "erf": np.vectorize(math.erf),
    "normal_cdf": normal_cdf, "gelu": lambda x: x * normal_cdf(x),
    "one_plus_tanh": lambda x: 2 * sigmoid(2 * x),
}  # fmt: skip
ERRORS = [(p, r) for p in (-(2.0**-22), 0.0, 2.0**-22) for r in (-(2.0**-23), 0.0, 2.0**-23)]


NAMED = [n for n in FUNCTIONS if n != "div"]
MADE_FOR = [
    (n, d) for n in NAMED for d in HALVES if n.endswith(f"_{d}") or not n.endswith("float16")
]


@pytest.mark.parametrize(("name", "dtype"), MADE_FOR)
def test_every_number_of_a_half_type(name, dtype, functions):
    function = name.removesuffix(f"_{dtype}")
    x = finite(dtype)
    with np.errstate(all="ignore"):
        exact = EXACT[function](x.astype(np.float64))
    for errors in ERRORS:
        assert off_by(functions[name](x, *errors), exact, dtype) <= 0.75
    special = np.array([np.nan, np.inf, -np.inf, 0.0], np.float32)
    with np.errstate(all="ignore"):
        expected = EXACT[function](special.astype(np.float64))
    found = functions[name](special).astype(HALVES[dtype])
    if name.startswith("gelu"):  # the limit there, rather than infinity times 0
        expected[2] = 0
    np.testing.assert_array_equal(found.astype(np.float64), expected)


@halves
@pytest.mark.parametrize("errors", ERRORS)
def test_gelu_and_silu_of_every_number(dtype, errors, functions):
    """Products of float32, rounded once."""
    x = finite(dtype).astype(np.float32)
    wide = x.astype(np.float64)
    with np.errstate(all="ignore"):
        silu = x * functions["sigmoid"](x, *errors)
        assert off_by(silu, wide * sigmoid(wide), dtype) <= 0.75
        gelu = x * functions["normal_cdf"](x, *errors)
        assert off_by(gelu, wide * normal_cdf(wide), dtype) <= 0.75


@halves
@pytest.mark.parametrize("errors", ERRORS)
def test_the_other_gelu_of_every_number(dtype, errors, functions):
    x = finite(dtype).astype(np.float32)
    wide = x.astype(np.float64)
    scale, cubic = math.sqrt(2 / math.pi), 0.044715
    with np.errstate(all="ignore"):
        argument = np.float32(scale) * x * (np.float32(1) + np.float32(cubic) * x * x)
        found = np.float32(0.5) * x * functions["one_plus_tanh"](argument, *errors)
        exact = wide * sigmoid(2 * scale * wide * (1 + cubic * wide * wide))
    assert off_by(found, exact, dtype) <= 0.75


def map_source(params, body):
    """Text of a map's kernel."""
    return cuda_kernel(kernel(Elementwise(True), group(params, body, CUDA), CUDA)[1])


def every_function(emit, x):
    half = [op.nn.gelu(x), op.nn.gelu_tanh(x), op.nn.silu(x)]
    return [op.exp(x), op.tanh(x), op.sigmoid(x), op.erf(x), *half]


@halves
def test_cuda_computes_half_types_fast(dtype):
    text = map_source([tensor("x", 129, dtype=dtype)], every_function)
    ranged = "_float16" if dtype == "float16" else ""
    for name in (
        f"exp{ranged}",
        "tanh",
        f"sigmoid{ranged}",
        "erf",
        f"gelu_{dtype}",
        "one_plus_tanh",
    ):
        assert f"{PREFIX}{name}(" in text
    for slow in ("expf(", "hexp(", "tanhf(", "htanh(", "erff("):
        assert slow not in text


def test_cuda_computes_float32_exactly():
    text = map_source([tensor("x", 129)], every_function)
    assert PREFIX not in text
    for exact in ("expf(", "tanhf(", "erff("):
        assert exact in text


@halves
def test_differences_are_taken_of_exact_values(dtype):
    """exp(x) - 1 keeps nothing of an approximation's digits where x is small."""

    def body(emit, x):
        wide = emit(op.astype(x, "float32"))
        one = relax.const(1.0, "float32")
        return op.astype(emit(op.subtract(emit(op.exp(wide)), one)), dtype)

    text = map_source([tensor("x", 129, dtype=dtype)], body)
    assert PREFIX not in text
    assert "expf(" in text


def test_quotients_rounded_once_are_not_divided_exactly():
    def body(emit, x, y):
        wide = [emit(op.astype(v, "float32")) for v in (x, y)]
        return op.astype(emit(op.divide(*wide)), "float16")

    params = [tensor("x", 129, dtype="float16"), tensor("y", 129, dtype="float16")]
    assert f"{PREFIX}div(" in map_source(params, body)


def test_arguments_stay_exact():
    """An exponential makes a small relative error of its argument a large one."""

    def body(emit, x):
        wide = emit(op.astype(x, "float32"))
        return op.astype(emit(op.exp(emit(op.exp(wide)))), "float16")

    text = map_source([tensor("x", 129, dtype="float16")], body)
    assert text.count(f"{PREFIX}exp(") == 1
    assert text.count("expf(") == 1


def test_few_functions_share_one_rounding():
    """Errors of many would add up to a unit in the last place."""

    def body(emit, x):
        value = wide = emit(op.astype(x, "float32"))
        for _ in range(5):
            value = emit(op.multiply(value, emit(op.tanh(wide))))
            wide = emit(op.add(wide, wide))
        return op.astype(value, "float16")

    text = map_source([tensor("x", 129, dtype="float16")], body)
    assert text.count(f"{PREFIX}tanh(") == 3
    assert text.count("tanhf(") == 2


@pytest.mark.parametrize("kind", [tirx.ForKind.UNROLLED, tirx.ForKind.VECTORIZED])
@pytest.mark.parametrize("function", [tirx.tanh, lambda x: x / tirx.const(3.0, "float32")])
def test_vectors_stay_vectors(kind, function):
    """TVM would make a scalar loop of one with such a call."""
    x, y = (tirx.decl_buffer([index(256)], "float16", n, layout=None) for n in "xy")

    def element(thread, lane):
        place = [thread * 8 + lane]
        wide = tirx.Cast("float32", tirx.BufferLoad(x, place))
        return tirx.BufferStore(y, tirx.Cast("float16", function(wide)), place)

    def body(thread):
        return loop("lane", 8, lambda lane: element(thread, lane), kind)

    func = tirx.PrimFunc([x, y], block("root", threads("threadIdx.x", 32, body)))
    func = func.with_attrs({"s_tir": True, "target": CUDA.tvm_target()})
    mod = tvm.IRModule({"main": func})
    is_same = tvm_ffi.structural_equal(HalfMath()(mod)["main"], func)
    assert is_same == (kind == tirx.ForKind.VECTORIZED)


def test_other_devices_are_left_alone():
    _, func = kernel(
        Elementwise(True), group([tensor("x", 129, dtype="float16")], every_function, CUDA), CUDA
    )
    for target in (CPU.tvm_target(), None):
        given = func if target is None else func.with_attr("target", target)
        assert tvm_ffi.structural_equal(HalfMath()(tvm.IRModule({"main": given}))["main"], given)


@pytest.mark.cuda_toolchain
@needs_nvcc
@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90a"])
def test_nvcc_accepts(arch):
    members = group([tensor("x", 129, dtype="float16")], every_function, CUDA)
    (one,) = machine_code({"main": kernel(Elementwise(True), members, CUDA)[1]}, arch).values()
    assert one.stack_bytes == 0
