"""Buffers that device functions access by the address of their first element."""

import re

from nvcc import cuda_source
from tvm import tirx

from tvm_fusion._tvm.ir.buffer import declare
from tvm_fusion.core.tir.expressions import load
from tvm_fusion.core.tir.loops import block, index, local, sequence, threads
from tvm_fusion.schedule.gpu.memory.shared_tiles import load_shared, store_shared, touch

SIZE = 4


def declared(is_touched):
    """Elements that CUDA's text declares of registers whose first address is passed on."""
    given, result = declare([SIZE], "float32", "given"), declare([SIZE], "float32", "result")
    held = local("held", [SIZE], "float32")
    first = load(held, [index(0)])
    stmts = [touch(held, SIZE - 1)] if is_touched else []
    stmts += [load_shared(first, load(given, [index(0)]), 16)]
    stmts += [store_shared(load(result, [index(0)]), first, 16)]
    made = threads("threadIdx.x", 1, lambda _: block("copy", sequence(stmts), [held]))
    body = block("root", threads("blockIdx.x", 1, lambda _: made))
    func = tirx.PrimFunc([given, result], body).with_attrs({"s_tir": True, "tirx.noalias": True})
    return int(re.search(r"float held\w*\[(\d+)\]", cuda_source(func))[1])


def test_a_touched_buffer_keeps_its_extent():
    assert declared(True) == SIZE


def test_tvm_still_shrinks_buffers_to_addresses_that_are_taken():
    """When this fails, `schedule.gpu.memory.shared_tiles.touch` can go."""
    assert declared(False) < SIZE
