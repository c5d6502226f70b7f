"""Every template's kernels as machine code for AMD: what they take, and that writes are awaited.

There is no such GPU here: limits, registers and waves are read back from the code objects, the
assembly is scanned for barriers that a write to shared memory could still be on its way behind,
and LLVM's IR for pointers that change their address space.
"""

import pytest
import tvm
from device_code import amd_kernels, unguarded_barriers
from group_kernels import group, kernel, tensor
from tvm import relax

from tvm_fusion.deploy.toolchain import rocm, toolchain
from tvm_fusion.device import parse
from tvm_fusion.schedule.attention.template import Attention
from tvm_fusion.schedule.contraction.gpu.template import GpuContraction
from tvm_fusion.schedule.elementwise.template import Elementwise
from tvm_fusion.schedule.rows.template import Rows
from tvm_fusion.schedule.single.template import Single

op = relax.op
HALF = {"dtype": "float16"}
LANES = {"gfx90a": 64, "gfx942": 64, "gfx1100": 32}
# What a block may declare, and a thread of 256.
SHARED, REGISTERS = 64 << 10, 256


def softmax(emit, x):
    return op.nn.softmax(x, -1)


def rms_norm(emit, x):
    total = emit(op.add(x, x))
    weight = relax.const([1.0] * int(x.ty.shape[1]), "float16")
    return [total, op.nn.rms_norm(total, weight, axes=[-1])]


def biased_product(emit, x, w):
    return op.nn.silu(emit(op.matmul(x, w)))


def attention(emit, q, k, v):
    scores = emit(op.matmul(q, emit(op.permute_dims(k, [0, 1, 3, 2]))))
    return op.matmul(emit(op.nn.softmax(scores, -1)), v)


def gates(emit, x):
    return op.multiply(emit(op.tanh(x)), emit(op.sigmoid(x)))


def transposed(emit, x):
    return op.astype(emit(op.permute_dims(x)), "float32")


def products(rows, terms, columns):
    return [tensor("x", rows, terms, **HALF), tensor("w", terms, columns, **HALF)]


# Template, arguments, graph, and whether threads exchange anything in shared memory.
CASES = {
    "rows": (Rows(), [tensor("x", 512, 4096, **HALF)], softmax, True),
    "odd rows": (Rows(), [tensor("x", 512, 1001, **HALF)], softmax, True),
    "rows with two results": (Rows(), [tensor("x", 512, 4096, **HALF)], rms_norm, True),
    "vectors": (Elementwise(True), [tensor("x", 512, 1024, **HALF)], gates, False),
    "tiles": (Elementwise(True), [tensor("x", 512, 1024, **HALF)], transposed, True),
    "shifted tiles": (Elementwise(True), [tensor("x", 1001, 513, **HALF)], transposed, True),
    "product of a row": (GpuContraction(), products(1, 1024, 2048), biased_product, True),
    "product of few rows": (GpuContraction(), products(7, 1001, 264), biased_product, True),
    "product of most rows": (GpuContraction(), products(16, 768, 768), biased_product, True),
    "product in tiles": (GpuContraction(), products(512, 256, 512), biased_product, True),
    "attention": (
        Attention(True), [tensor(n, 2, 4, 130, 64, **HALF) for n in "qkv"], attention, True,
    ),
    "one operator": (Single(True), [tensor("x", 33, 1001, **HALF)], softmax, True),
}  # fmt: skip

# What reads 16 bytes at once.
WIDE = ("rows", "rows with two results", "vectors", "tiles")


def sources(case, arch):
    """LLVM's IR and the assembly of what a template makes of a graph."""
    template, params, body, _ = CASES[case]
    spec = parse(f"rocm:{arch}")
    target = spec.tvm_target()
    func = kernel(template, group(params, body, spec), spec)[1]
    with toolchain(spec), target:
        mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
        built = tvm.compile(mod, target, tir_pipeline="tvm_fusion")
    (module,) = [m for m in built.mod.imports if m.kind == "hip"]
    return module.inspect_source("hip"), module.inspect_source("asm")


@pytest.mark.rocm_toolchain
@pytest.mark.skipif(rocm.find_lld() is None, reason="no lld 19 or newer was found")
@pytest.mark.parametrize("arch", LANES)
@pytest.mark.parametrize("case", CASES)
def test_templates_on_amd(case, arch):
    code, text = sources(case, arch)
    assert "addrspacecast" not in code
    *_, exchanges = CASES[case]
    for one in amd_kernels(text):
        assert one["wavefront_size"] == LANES[arch]
        assert one["max_flat_workgroup_size"] <= 256
        assert one["group_segment_fixed_size"] <= SHARED
        assert one["vgpr_count"] <= REGISTERS
        assert one["vgpr_spill_count"] == one["sgpr_spill_count"] == 0
    assert unguarded_barriers(text) == 0
    assert exchanges == ("s_barrier" in text)
    if case in WIDE:
        wide = "global_load_b128" if arch == "gfx1100" else "global_load_dwordx4"
        assert wide in text
