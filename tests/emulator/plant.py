"""Plant mistakes in kernels, which the emulator must find."""

import re

import emulator.launch
import tvm_ffi
from tvm import ir, tirx

from tvm_fusion.core.tir.expressions import call_name

WAIT = r"wait_group (\d+);"


def plant(monkeypatch, kind, change):
    """Change what is of a kind in kernels, once they are lowered."""
    run_kernel = emulator.launch.run_kernel

    def planted(func, given):
        body = tvm_ffi.structural_map(func.body, (kind, change), order="post")
        assert not tvm_ffi.structural_equal(body, func.body)
        run_kernel(func.with_body(body), given)

    monkeypatch.setattr(emulator.launch, "run_kernel", planted)


def without_barrier(number):
    """Leave out one of a kernel's barriers of blocks."""
    seen = []

    def change(stmt):
        if isinstance(stmt.value, ir.Call) and call_name(stmt.value) == "tvm_storage_sync":
            seen.append(stmt)
            return tirx.Evaluate(0) if len(seen) == number + 1 else stmt
        return stmt

    return tirx.Evaluate, change


def with_text(pattern, replacement):
    """Change the text of device functions."""

    def change(call):
        if call_name(call) != "func_call":
            return call
        *args, source = call.args
        text = ir.StringImm(re.sub(pattern, replacement, source.value))
        return ir.Call(call.op, [*args, text], call.attrs, call.ty_args, None, call.ty)

    return ir.Call, change


def in_fewer_stages(stages):
    """Let an access to a pipeline's buffer be to that of one stage less."""

    def change(load):
        buffer = load.source
        if buffer.scope() != "shared.dyn":
            return load
        (size,), (index,) = map(int, buffer.shape), load.indices
        dtype = str((index.base if isinstance(index, tirx.Ramp) else index).ty.dtype)
        less = tirx.IntImm(dtype, size // stages * (stages - 1))
        if isinstance(index, tirx.Ramp):
            index = tirx.Ramp(tirx.floormod(index.base, less), index.stride, index.lanes)
        else:
            index = tirx.floormod(index, less)
        return tirx.BufferLoad(buffer, [index])

    return ir.TensorLoad, change
