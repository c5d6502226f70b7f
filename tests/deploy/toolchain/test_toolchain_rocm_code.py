"""What is read back of AMD code, and that wrong code is not shipped."""

import re

import pytest
from amd_code import amd_module, reverse_twice
from tvm.script import tirx as T

from tvm_fusion.core.decisions import recording
from tvm_fusion.deploy.build.build import check_amd_code
from tvm_fusion.deploy.toolchain.rocm_code import faults, kernels, unguarded_barriers
from tvm_fusion.errors import UserError

LOOP = """
  s_cbranch_scc1 .LBB0_3
.LBB0_1:
  ds_read_b32 v1, v0
  s_waitcnt lgkmcnt(0)
  s_barrier{before}
  ds_write_b32 v0, v1
  s_cbranch_scc1 .LBB0_1
.LBB0_3:{after}
  s_barrier
  s_endpgm
"""
WAIT = "\n  s_waitcnt vmcnt(0) lgkmcnt(0)"


@pytest.mark.parametrize(
    ("before", "after", "count"), [("", "", 1), ("", WAIT, 0), (WAIT, "", 1)], ids=str
)
def test_barriers_behind_the_end_of_a_loop(before, after, count):
    assert unguarded_barriers(LOOP.format(before=before, after=after)) == count


def test_barriers_that_only_a_jump_back_reaches():
    looped = "L:\n s_barrier\n ds_store_b32 v0, v1\n{} s_cbranch_vccnz L\n s_endpgm"
    assert unguarded_barriers(looped.format("")) == 1
    assert unguarded_barriers(looped.format(" s_waitcnt lgkmcnt(0)\n")) == 0
    assert unguarded_barriers("ds_write_b32 v0, v1\n s_endpgm\n s_barrier") == 0
    assert unguarded_barriers("ds_write_b32 v0, v1\n s_branch M\n s_barrier\nM:\n s_endpgm") == 0
    assert unguarded_barriers("ds_bpermute_b32 v0, v1, v2\n s_barrier") == 0


@T.prim_func(s_tir=True)
def indexed_registers(x: T.Buffer((256,), "int32"), y: T.Buffer((256,), "int32")):
    for t in T.thread_binding(256, thread="threadIdx.x"):
        with T.sblock("own"):
            T.reads(x[t])
            T.writes(y[t])
            own = T.sblock_alloc_buffer((100,), "int32", scope="local")
            for i in range(100):
                own[i] = x[(t + i) % 256]
            y[t] = own[x[t] % 100]


@pytest.mark.parametrize("arch", ["gfx942", "gfx1100"])
def test_a_kernel_that_addresses_shared_memory_as_global_is_refused(arch):
    stock = amd_module({"main": reverse_twice}, arch, "s_tir")
    with pytest.raises(UserError, match="kernel 'main_kernel' addresses shared memory as global"):
        check_amd_code(stock)
    ours = amd_module({"main": reverse_twice}, arch)
    with recording() as decisions:
        check_amd_code(ours)
    assert decisions == []
    (kernel,) = kernels(ours.inspect_source("asm"))
    assert kernel.shared_bytes == 3 * 256 * 4


def test_a_barrier_without_a_wait_is_a_fault():
    ours = amd_module({"main": reverse_twice}, "gfx1100")
    assembly = ours.inspect_source("asm")
    assert assembly.count("lgkmcnt(0)") > 0
    hurried = assembly.replace("lgkmcnt(0)", "expcnt(0)")
    ((name, fault),) = faults(ours.inspect_source("hip"), hurried)
    assert name == "main_kernel"
    assert fault.startswith("passes 3 barriers without waiting")


def test_registers_in_memory_are_recorded():
    with recording() as decisions:
        check_amd_code(amd_module({"main": indexed_registers}, "gfx942"))
    (decision,) = decisions
    assert (decision.producer, decision.code) == ("main_kernel", "out_of_registers")
    assert int(re.search(r"(\d+) bytes lie in scratch memory", decision.sentence)[1]) >= 400
