"""Positions in a ring of stages: what quotients and remainders of a step's number would give."""

import numpy as np
import pytest
from emulator.launch import launch
from group_kernels import CUDA
from tvm import tirx

from tvm_fusion._tvm.ir.buffer import declare
from tvm_fusion.core.tir.loops import block, index, loop, sequence, threads
from tvm_fusion.schedule.gpu.memory.pipeline import RingPosition

STEPS = 11


def positions(stages, count):
    """Store stage, parity and stage before at each step, going on by so many stages."""
    ring, out = RingPosition(stages), declare([index(STEPS), index(3)], "int32", "out")

    def step(i):
        values = ring.stage, ring.parity, ring.before
        stores = [tirx.BufferStore(out, v, [i, index(n)]) for n, v in enumerate(values)]
        return sequence([*stores, *ring.advance(count)])

    def of_thread(_thread):
        return block("ring", sequence([*ring.start(), loop("i", STEPS, step)]), [ring.buffer])

    made = threads("blockIdx.x", 1, lambda _: threads("threadIdx.x", 32, of_thread))
    func = tirx.PrimFunc([out], block("root", made)).with_attrs({"s_tir": True})
    result = np.full((STEPS, 3), -1, "int32")
    launch(func, [result], CUDA.tvm_target())
    return result


@pytest.mark.parametrize(("stages", "count"), [(3, 1), (4, 1), (3, 7), (4, 8), (5, 14)])
def test_stage_and_parity_of_a_step(stages, count):
    rounds, stage = np.divmod(np.arange(STEPS) * count, stages)
    found = positions(stages, count)
    np.testing.assert_array_equal(found[:, 0], stage)
    np.testing.assert_array_equal(found[:, 1], rounds % 2)
    if count == 1:
        np.testing.assert_array_equal(found[1:, 2], stage[:-1])
