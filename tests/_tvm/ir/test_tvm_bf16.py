"""A function in LLVM's language stands for vectors of bfloat, which TVM cannot name."""

import re

import pytest
import tvm
from tvm import tirx
from tvm.error import InternalError

from tvm_fusion._tvm.ir.bf16 import dot_bf16, with_dot_bf16
from tvm_fusion._tvm.ir.buffer import declare
from tvm_fusion.core.tir.loops import block, index
from tvm_fusion.device import parse

TARGET = parse("cpu:cooperlake").tvm_target()


LANES = tirx.Ramp(index(0), index(1), 16)


def assembly(value, around=lambda body: body):
    """Machine code of ``sums = value(sums, left, right)``, words being pairs of bfloat16."""
    buffers = [declare([index(16)], dtype, "b") for dtype in ("float32", "int32", "int32")]
    operands = [tirx.BufferLoad(b, [LANES]) for b in buffers]
    body = around(tirx.BufferStore(buffers[0], value(*operands), [LANES]))
    func = tirx.PrimFunc(buffers, block("root", body)).with_attrs(
        {"s_tir": True, "tirx.is_scheduled": True, "global_symbol": "main"}
    )
    built = tvm.tirx.build(tvm.IRModule({"main": func}), TARGET, pipeline="tvm_fusion")
    return built.inspect_source("asm")


def test_one_instruction():
    text = assembly(dot_bf16, lambda body: with_dot_bf16(body, 16))
    assert len(re.findall(r"vdpbf16ps\s.*%zmm", text)) == 1
    assert "callq\ttvm_fusion_dot" not in text


def test_tvm_has_no_vectors_of_bfloat():
    """When this fails, `_tvm_bf16` can go."""

    def value(sums, *words):
        pairs = [tirx.reinterpret("bfloat16x32", w) for w in words]
        name = "llvm.x86.avx512bf16.dpbf16ps.512"
        return tirx.call_llvm_pure_intrin("float32x16", name, sums, *pairs)

    with pytest.raises(InternalError, match="does not match function signature"):
        assembly(value)
