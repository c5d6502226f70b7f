"""Shuffles of kernels with symbolic dimensions on AMD GPUs, whose indices are int64."""

import pytest
from amd_code import amd_module
from tvm.script import tirx as T


@T.prim_func(s_tir=True)
def reverse_rows(rows: T.handle, out: T.handle):
    n = T.int64()
    x = T.match_buffer(rows, (n, T.int64(32)), "float32")
    y = T.match_buffer(out, (n, T.int64(32)), "float32")
    for block in T.thread_binding(n, thread="blockIdx.x"):
        with T.sblock("row"):
            r = T.axis.spatial(n, block)
            held = T.sblock_alloc_buffer((T.int64(32),), scope="warp")
            for t in T.thread_binding(T.int64(32), thread="threadIdx.x"):
                held[t] = x[r, t]
                y[r, t] = held[T.int64(31) - t]


@pytest.mark.parametrize("arch", ["gfx942", "gfx1100"])
def test_lanes_are_int32(arch):
    built = amd_module({"main": reverse_rows}, arch)
    assert "call i32 @llvm.amdgcn.ds.bpermute(i32 " in built.inspect_source("hip")


def test_tvm_still_passes_lanes_of_64_bits():
    """When this fails, `lower.narrow_lanes` can go."""
    with pytest.raises(RuntimeError, match=r"amdgcn\.ds\.bpermute"):
        amd_module({"main": reverse_rows}, "gfx1100", "s_tir")
