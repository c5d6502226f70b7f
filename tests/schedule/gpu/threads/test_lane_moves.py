"""Reductions and exchanges between the lanes of AMD waves, compiled and interpreted."""

import re

import numpy as np
import pytest
import tvm
from amd_code import amd_module
from emulator.amd import run
from tvm import te
from tvm.script import tirx as T

from tvm_fusion.device import parse

# Up to a wave of lanes.
LANES = [(arch, n) for arch in ("gfx90a", "gfx942") for n in (4, 16, 32, 64)]
LANES += [("gfx1100", n) for n in (4, 16, 32)]


def row_sums(rows, lanes, dtype):
    """Sums of rows of one element a thread."""
    x = te.placeholder((rows, lanes), dtype, name="x")
    k = te.reduce_axis((0, lanes), name="k")
    y = te.compute((rows,), lambda r: te.sum(x[r, k], k), name="y")
    schedule = tvm.s_tir.Schedule(te.create_prim_func([x, y]))
    row, lane = schedule.get_loops(schedule.get_sblock("y"))
    schedule.bind(row, "threadIdx.y")
    schedule.bind(lane, "threadIdx.x")
    return schedule.mod["main"]


@pytest.mark.parametrize(("arch", "lanes"), LANES)
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_sums_over_lanes_take_no_shared_memory(arch, lanes, dtype):
    wave = parse(f"rocm:{arch}").device.warp_size
    text = amd_module({"main": row_sums(2, lanes, dtype)}, arch).inspect_source("asm")
    assert not re.findall(r"\bds_\w+", text)
    steps = re.findall(r"v_\w*_dpp|v_permlanex16", text)
    assert len(steps) == lanes.bit_length() - 1
    assert any(step.startswith("v_add") for step in steps)  # a move is an operand of the addition
    # The last lane of each block has the result where rows of 16 lanes are broadcast.
    blocks = wave // lanes if "row_bcast" in text else 0
    assert len(re.findall("v_readlane", text)) == blocks
    x = np.random.default_rng().integers(-99, 99, (2, lanes)).astype(dtype)
    y = np.zeros(2, dtype)
    run(text, "main_kernel", (1, 1, 1), (lanes, 2, 1), [x, y])
    np.testing.assert_array_equal(y, x.sum(1))


def exchange(mask):
    """Numbers of the lanes at a distance, 16 lanes by 4 groups."""

    @T.prim_func(s_tir=True)
    def main(x: T.Buffer((4, 16), "float32"), y: T.Buffer((4, 16), "float32")):
        for g in T.thread_binding(4, thread="threadIdx.y"):
            for t in T.thread_binding(16, thread="threadIdx.x"):
                with T.sblock("exchange"):
                    y[g, t] = T.tvm_warp_shuffle(
                        T.uint32(0xFFFFFFFF),
                        x[g, t],
                        T.bitwise_xor(T.Cast("int32", t), T.int32(mask)),
                        T.int32(64),
                        T.int32(64),
                    )

    return main


@pytest.mark.parametrize(("arch", "moves"), [("gfx942", 2), ("gfx1100", 1)])
def test_exchanges_take_no_shared_memory(arch, moves):
    text = amd_module({"main": exchange(4)}, arch).inspect_source("asm")
    assert not re.findall(r"\bds_\w+", text)
    assert len(re.findall(r"v_mov_b32_dpp", text)) == moves
    x, y = np.random.default_rng().random((4, 16), "float32"), np.zeros((4, 16), "float32")
    run(text, "main_kernel", (1, 1, 1), (16, 4, 1), [x, y])
    np.testing.assert_array_equal(y, x[:, np.arange(16) ^ 4])


def test_what_the_moves_do_not_reach_is_shuffled():
    assert "ds_bpermute" in amd_module({"main": exchange(32)}, "gfx942").inspect_source("asm")


@pytest.mark.parametrize("lanes", [24, 128])
def test_other_reductions_are_left_to_tvm(lanes):
    text = amd_module({"main": row_sums(2, lanes, "float32")}, "gfx942").inspect_source("asm")
    assert "ds_write" in text
    assert "_dpp" not in text
