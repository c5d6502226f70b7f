"""How kernels are cut for AMD GPUs, and that what is claimed for them is emitted."""

import pytest
import tvm_ffi
from amd_code import amd_module
from group_kernels import group, kernel, tensor
from relax_modules import main_module
from tvm import relax, s_tir

from tvm_fusion import transform
from tvm_fusion.core.decisions import recording
from tvm_fusion.deploy.toolchain.rocm_code import kernels
from tvm_fusion.device import parse
from tvm_fusion.schedule.attention.template import Attention
from tvm_fusion.schedule.contraction.gpu.template import GpuContraction
from tvm_fusion.schedule.elementwise.template import Elementwise
from tvm_fusion.schedule.scan.template import PrefixSum
from tvm_fusion.schedule.sort.template import RankSort

op = relax.op


def module(body, *shapes, dtype):
    types = (relax.TensorType(s, dtype) for s in shapes)
    return main_module([relax.Var(f"x{i}", t) for i, t in enumerate(types)], body)


def attention(emit, q, k, v):
    scores = emit(op.matmul(q, emit(op.permute_dims(k, [0, 1, 3, 2]))))
    return op.matmul(emit(op.nn.softmax(scores, -1)), v)


@pytest.mark.parametrize("arch", ["gfx942", "gfx1100"])
@pytest.mark.parametrize(("keys", "size"), [(320, 32), (320, 64), (317, 80)])
def test_claims_of_decode_attention_are_kept(arch, keys, size):
    kv = (1, 2, keys, size)
    mod = module(attention, (1, 2, 1, size), kv, kv, dtype="float32")
    with parse(f"rocm:{arch}").tvm_target(), recording() as decisions:
        for stage in (transform.Legalize(), transform.FuseOperators(), transform.ScheduleKernels()):
            mod = stage(mod)
    assert [d.sentence for d in decisions if d.verdict == "fallback"] == []


def sums_of_a_thread(target, rows, dtype):
    """Accumulators of a product of few rows."""
    spec = parse(target)
    params = [tensor("x", rows, 512, dtype=dtype), tensor("w", 512, 768, dtype=dtype)]
    members = group(params, lambda emit, x, w: op.matmul(x, w, "float32"), spec)
    found = []
    func = kernel(GpuContraction(), members, spec)[1]
    tvm_ffi.structural_walk(
        func.body, (s_tir.SBlock, lambda block: found.extend(block.alloc_buffers))
    )
    (sums,) = [b for b in found if b.name == "acc"]
    return int(sums.shape[-1])


@pytest.mark.parametrize("arch", ["gfx942", "gfx1100"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_few_rows_leave_registers_to_what_is_read_ahead(arch, dtype):
    """Eight, of which matrix cores would multiply half of what they could."""
    assert sums_of_a_thread(f"rocm:{arch}", 8, dtype) == (64 if dtype == "float16" else 32)
    assert sums_of_a_thread(f"rocm:{arch}", 1, dtype) == (8 if dtype == "float16" else 4)


def test_few_rows_have_wide_vectors_where_registers_allow():
    assert sums_of_a_thread("cuda:sm_75", 16, "bfloat16") == 128


CLAIMED = {
    "transpose": (Elementwise, [("x", 512, 520)], lambda emit, x: op.permute_dims(x, [1, 0])),
    "scan": (PrefixSum, [("x", 8, 4096)], lambda emit, x: op.cumsum(x, axis=-1)),
    "attention": (Attention, [(n, 2, 3, 100, 64) for n in "qkv"], attention),
    "sort": (RankSort, [("x", 8, 500)], lambda emit, x: op.argsort(x, -1)),
}


@pytest.mark.parametrize("arch", ["gfx90a", "gfx942", "gfx1100"])
@pytest.mark.parametrize("case", CLAIMED)
def test_shared_memory_is_as_claimed_and_nothing_is_spilled(case, arch):
    """Shared memory is claimed with the last row's padding."""
    template, shapes, body = CLAIMED[case]
    spec, dtype = parse(f"rocm:{arch}"), "int32" if case == "sort" else "float32"
    params = [tensor(*shape, dtype=dtype) for shape in shapes]
    claim, func = kernel(template(is_gpu=True), group(params, body, spec), spec)
    (code,) = kernels(amd_module({"main": func}, arch).inspect_source("asm"))
    assert 0 <= claim.shared_bytes - code.shared_bytes <= 64
    assert not code.spills
