"""Numbers that are rounded to bfloat16 and computed with in float32: one instruction each."""

import pytest
import tvm
import tvm_ffi
from group_kernels import group, kernel, tensor
from nvcc import machine_code, needs_nvcc
from tvm import relax, tirx
from tvm.script import tirx as T

from tvm_fusion.core.tir.expressions import call_name
from tvm_fusion.core.tir.loops import find
from tvm_fusion.device import parse
from tvm_fusion.schedule.contraction.gpu.template import GpuContraction
from tvm_fusion.schedule.math.ptx_math import PtxMath

CUDA, AMPERE = parse("cuda:sm_90a"), parse("cuda:sm_80")


def through(middle, outer="float32"):
    """A function that casts there and back."""

    @T.prim_func(private=True)
    def func(x: T.Buffer((8,), "float32"), y: T.Buffer((8,), outer)):
        for i in range(8):
            y[i] = T.Cast(outer, T.Cast(middle, x[i] + T.float32(1)))

    return func


def lowered(func, target):
    return PtxMath()(tvm.IRModule({"main": func.with_attr("target", target)}))["main"]


def test_casts_there_and_back_are_one_call():
    func = lowered(through("bfloat16"), CUDA.tvm_target())
    (call,) = [c for c in find(func.body, tvm.ir.Call) if call_name(c) == "func_call"]
    assert isinstance(call.args[1], tirx.Add)
    assert not find(func.body, tirx.Cast)


@pytest.mark.parametrize(
    ("func", "spec"),
    [
        (through("float16"), CUDA),
        (through("bfloat16", "float64"), CUDA),
        (through("bfloat16"), parse("rocm:gfx942")),
        (through("bfloat16"), parse("llvm")),
    ],
    ids=["float16", "float64", "rocm", "llvm"],
)
def test_others_stay(func, spec):
    given = func.with_attr("target", spec.tvm_target())
    assert tvm_ffi.structural_equal(lowered(func, spec.tvm_target()), given)


@pytest.mark.cuda_toolchain
@needs_nvcc
def test_machine_code_converts_pairs_alone():
    """A GELU behind a bias, as bfloat16 has both: the sum is rounded before."""
    params = [tensor(name, 64, 64, dtype="bfloat16") for name in "xw"]

    def body(emit, x, w):
        total = emit(relax.op.matmul(x, w, "float32"))
        return relax.op.nn.gelu(emit(relax.op.astype(total, "bfloat16")))

    _, func = kernel(GpuContraction(), group(params, body, AMPERE), AMPERE)
    for arch in ("sm_80", "sm_90a"):
        (made,) = machine_code({"gelu": func}, arch).values()
        there_and_back, stored = (made.ptx.count(f"cvt.rn.{x}.f32") for x in ("bf16x2", "bf16"))
        assert there_and_back == stored > 0
