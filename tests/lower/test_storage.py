"""Shared memory of AMD kernels is addressed as shared memory."""

import pytest
import tvm
import tvm_ffi
from amd_code import amd_module, reverse_twice
from tvm import tirx

from tvm_fusion.device import parse

ARCHS = ("gfx942", "gfx1100")


def casts(pipeline, arch):
    return (
        amd_module({"main": reverse_twice}, arch, pipeline)
        .inspect_source("hip")
        .count("addrspacecast")
    )


@pytest.mark.parametrize("arch", ARCHS)
def test_shared_memory_is_not_addressed_as_global(arch):
    assert casts("tvm_fusion", arch) == 0


@pytest.mark.parametrize("arch", ARCHS)
def test_tvm_still_addresses_views_of_shared_memory_as_global(arch):
    """When this fails, `lower.storage` can go."""
    assert casts("s_tir", arch) > 0


def lowered(target):
    """Views among the buffers of a lowered kernel."""
    passes, _, _ = tirx.compilation_pipeline.PIPELINE_MAP["tvm_fusion"]()
    mod = tvm.IRModule({"main": reverse_twice.with_attr("global_symbol", "main")})
    target = target.with_host("llvm") if target.host is None else target
    with target:
        mod = passes(tirx.transform.BindTarget(target)(mod))
    views = []
    for func in mod.functions.values():
        tvm_ffi.structural_walk(func.body, (tirx.DeclBuffer, views.append))
    return [v for v in views if v.buffer.scope() == "shared"]


def test_other_gpus_reuse_their_shared_memory():
    assert lowered(parse("cuda:sm_90a").tvm_target())
    assert not lowered(parse("rocm:gfx942").tvm_target())
