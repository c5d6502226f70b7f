"""Row kernels as machine code for AMD: wide accesses, and no barrier before a write has landed."""

import pytest
import tvm
from device_code import unguarded_barriers
from group_kernels import group, kernel, tensor
from tvm import relax

from tvm_fusion.deploy.toolchain import rocm, toolchain
from tvm_fusion.device import parse
from tvm_fusion.schedule.rows.template import Rows


def softmax(emit, x):
    return relax.op.nn.softmax(x, -1)


def rms_norm(emit, x):
    total = emit(relax.op.add(x, x))
    weight = relax.const([1.0] * int(x.ty.shape[1]), "float16")
    return [total, relax.op.nn.rms_norm(total, weight, axes=[-1])]


@pytest.mark.rocm_toolchain
@pytest.mark.skipif(rocm.find_lld() is None, reason="no lld from version 19 on was found")
@pytest.mark.parametrize("arch", ["gfx90a", "gfx942", "gfx1100"])
@pytest.mark.parametrize("columns", [4096, 1001])
@pytest.mark.parametrize("body", [softmax, rms_norm])
def test_rows_on_amd(body, columns, arch):
    spec = parse(f"rocm:{arch}")
    target = spec.tvm_target()
    members = group([tensor("x", 512, columns, dtype="float16")], body, spec)
    func = kernel(Rows(), members, spec)[1].with_attr("global_symbol", "main")
    with toolchain(spec), target:
        built = tvm.compile(tvm.IRModule({"main": func}), target, tir_pipeline="tvm_fusion")
    (assembly,) = [m.inspect_source("asm") for m in built.mod.imports if m.kind == "hip"]
    assert "s_barrier" in assembly
    assert unguarded_barriers(assembly) == 0
    wide = "global_load_b128" if arch == "gfx1100" else "global_load_dwordx4"
    assert columns % 8 or wide in assembly
