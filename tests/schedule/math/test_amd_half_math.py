"""Functions of half types on AMD GPUs: within one unit in the last place of every number."""

import math

import ml_dtypes
import numpy as np
import pytest
from amd_code import amd_module
from emulator.amd import run
from tvm import tirx

from tvm_fusion._tvm.ir.buffer import declare
from tvm_fusion.core.tir.loops import block, index, threads
from tvm_fusion.schedule.math.amd_half_functions import FUNCTIONS
from tvm_fusion.schedule.math.half_math import FUNCTIONS as CUDA_FUNCTIONS

HALVES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
COUNT, THREADS = 1 << 16, 256


def gelu(x):
    return (
        x
        * tirx.const(0.5, "float32")
        * (tirx.const(1, "float32") + tirx.erf(x * tirx.const(math.sqrt(0.5), "float32")))
    )


def one_plus_tanh(x):
    return tirx.const(1, "float32") + tirx.tanh(x)


def quotient(x):
    return x / (tirx.const(1, "float32") + tirx.exp(x * tirx.const(-1, "float32")))


CASES = {
    "exp": (tirx.exp, np.exp),
    "sigmoid": (tirx.sigmoid, lambda x: 1 / (1 + np.exp(-x))),
    "tanh": (tirx.tanh, np.tanh),
    "erf": (tirx.erf, np.vectorize(math.erf)),
    "gelu": (gelu, lambda x: x * 0.5 * np.vectorize(math.erfc)(-x / math.sqrt(2))),
    "one plus tanh": (one_plus_tanh, lambda x: 2 / (1 + np.exp(-2 * x))),
    # Float32 has no larger exponential.
    "quotient": (quotient, lambda x: x / (1 + np.exp(-x).astype("float32").astype("float64"))),
}


def module(function, dtype, arch):
    """A kernel of one number a thread, computed in float32 and rounded."""
    x, y = declare([COUNT], dtype, "x"), declare([COUNT], dtype, "y")

    def body(b, t):
        at = [b * THREADS + t]
        value = function(tirx.Cast("float32", tirx.BufferLoad(x, at)))
        return tirx.BufferStore(y, tirx.Cast(dtype, value), at)

    blocks = index(COUNT // THREADS)
    grid = threads(
        "blockIdx.x", blocks, lambda b: threads("threadIdx.x", THREADS, lambda t: body(b, t))
    )
    func = tirx.PrimFunc([x, y], block("root", grid)).with_attr("s_tir", True)
    return amd_module({"main": func}, arch)


def ordinals(x):
    """Numbers of a half type in their order; both zeros are one."""
    bits = x.view(np.int16).astype(np.int64)
    return np.where(bits < 0, -(bits & 0x7FFF), bits)


def test_the_functions_are_those_of_cuda():
    assert FUNCTIONS.keys() == CUDA_FUNCTIONS.keys()


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("arch", ["gfx942", "gfx1100"])
def test_every_number_is_right_to_an_ulp(case, dtype, arch):
    function, reference = CASES[case]
    made = module(function, dtype, arch)
    x = np.arange(COUNT, dtype=np.uint16).view(HALVES[dtype])
    y = np.zeros(COUNT, np.uint16)
    run(
        made.inspect_source("asm"),
        "main_kernel",
        (COUNT // THREADS, 1, 1),
        (THREADS, 1, 1),
        [x.view(np.uint16), y],
    )
    y, is_number = y.view(HALVES[dtype]), np.isfinite(x.astype("float32"))
    with np.errstate(all="ignore"):
        want = reference(x[is_number].astype("float64")).astype(HALVES[dtype])
    difference = np.abs(ordinals(y[is_number]) - ordinals(want))
    assert difference.max() <= 1
    assert np.isnan(y[np.isnan(x.astype("float32"))].astype("float32")).all()
