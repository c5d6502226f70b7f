"""Kernels of tensors without elements: on a GPU nothing is launched for them."""

import pytest
import tvm
from tvm import tirx
from tvm.script import tirx as T

from tvm_fusion._tvm.ir.structural import structural_walk
from tvm_fusion.device import parse
from tvm_fusion.lower.cleanup import DropEmptyLoops
from tvm_fusion.pipeline import tir_pipeline


def zeros(blocks):
    @T.prim_func(s_tir=True)
    def func(x: T.handle):
        T.func_attr({"tirx.is_scheduled": True})
        n = T.int64()
        a = T.match_buffer(x, (blocks, n), "float32")
        for block in T.thread_binding(T.int64(blocks), thread="blockIdx.x"):
            for thread in T.thread_binding(T.int64(64), thread="threadIdx.x"):
                with T.sblock("element"):
                    i = T.axis.spatial(blocks, block)
                    j = T.axis.spatial(n, thread)
                    T.where(thread < n)
                    a[i, j] = T.float32(0)

    return func.with_attr("global_symbol", "main")


@pytest.mark.parametrize(("blocks", "kernels"), [(0, 0), (2, 1)])
def test_nothing_is_launched_for_no_blocks(blocks, kernels):
    run, _, _ = tir_pipeline()
    target = parse("cuda:sm_90a").tvm_target()
    func = zeros(blocks).with_attr("target", tvm.target.Target(target, "llvm"))
    with target:
        mod = run(tvm.IRModule({"main": func}))
    on_gpu = [f for f in mod.functions.values() if str(f.attrs["target"].kind.name) == "cuda"]
    assert len(on_gpu) == kernels


def test_other_loops_stay():
    func = zeros(2)
    assert DropEmptyLoops()(tvm.IRModule({"main": func}))["main"].same_as(func)
    (found,) = DropEmptyLoops()(tvm.IRModule({"main": zeros(0)})).functions.values()
    loops = []
    structural_walk(found.body, (tirx.For, loops.append))
    assert not loops
