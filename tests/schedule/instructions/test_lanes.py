"""Lane moves against what AMD's guides say of DPP controls, and sums by chains of them."""

import numpy as np
import pytest

from tvm_fusion.device import GPUS
from tvm_fusion.schedule.instructions.lanes import (
    LANE_MOVES,
    STAY,
    all_reduce_moves,
    exchange_moves,
    scan_moves,
)

AMD = [device for device in GPUS.values() if device.kind == "rocm"]
# Of rows of 16 lanes, by control ("DPP_ROW_*" in the guides); None: what is out of bounds.
IN_ROW = {
    0x128: lambda lane: (lane - 8) % 16,  # rotated right by 8
    0x140: lambda lane: 15 - lane,  # mirrored
    0x141: lambda lane: lane // 8 * 8 + 7 - lane % 8,  # halves mirrored
    0x164: lambda lane: lane ^ 4,
    **{0x110 + n: lambda lane, n=n: lane - n if lane >= n else None for n in (1, 2, 4, 8)},
}


def manual(move, lane):
    """The lane that a lane reads, by the instruction's control."""
    if move.family == "permlanex16":
        return (lane // 16 ^ 1) * 16 + (15 if move.block else lane % 16)
    if move.control == 0x142:  # lane 15 of each row to the next row
        return lane // 16 * 16 - 1 if lane >= 16 else None
    if move.control == 0x143:  # lane 31 to rows 2 and 3
        return 31 if lane >= 32 else None
    if move.control < 0x100:  # a quad_perm
        return lane // 4 * 4 + (move.control >> lane % 4 * 2 & 3)
    found = IN_ROW[move.control](lane % 16)
    return None if found is None else lane // 16 * 16 + found


@pytest.mark.parametrize(
    "move", [STAY, *LANE_MOVES], ids=lambda m: f"{m.family}{m.mask}.{m.block}.{m.shift}"
)
def test_a_move_reads_the_lane_of_its_control(move):
    wave = 32 if move.family in ("permlanex16", "row_xmask") else 64
    assert [move.source(lane) for lane in range(wave)] == [manual(move, i) for i in range(wave)]


def moved(move, values):
    sources = [move.source(lane) for lane in range(len(values))]
    return np.array([10**6 if s is None else values[s] for s in sources])


@pytest.mark.parametrize("device", AMD, ids=lambda d: d.arch)
def test_maxima_of_all_blocks_of_lanes(device):
    for bits in range(device.warp_size.bit_length()):
        lanes = 1 << bits
        terms = np.random.default_rng().permutation(device.warp_size)
        found, moves = terms, all_reduce_moves(device, lanes)
        for move in moves:
            found = np.maximum(found, moved(move, found))
        want = np.repeat(terms.reshape(-1, lanes).max(1), lanes)
        last = slice(None) if all(move.mask for move in moves) else slice(lanes - 1, None, lanes)
        np.testing.assert_array_equal(found[last], want[last])


@pytest.mark.parametrize("device", AMD, ids=lambda d: d.arch)
def test_exchanges(device):
    lanes = np.arange(device.warp_size)
    for mask in (1, 2, 4, 8, 16 if device.warp_size == 32 else 12):
        found = lanes
        for move in exchange_moves(device, mask):
            found = moved(move, found)
        np.testing.assert_array_equal(found, lanes ^ mask)


@pytest.mark.parametrize("device", AMD, ids=lambda d: d.arch)
def test_prefix_sums_of_all_blocks_of_lanes(device):
    for bits in range(1, device.warp_size.bit_length()):
        lanes = 1 << bits
        terms = np.random.default_rng().integers(0, 99, device.warp_size)
        found, lane = terms, np.arange(device.warp_size)
        for distance, move in scan_moves(device, lanes).items():
            sources = [move.source(one) for one in lane]
            others = np.array([0 if s is None else found[s] for s in sources])
            adds = lane % (2 * move.block if move.block else min(lanes, 16)) >= distance
            found = found + np.where(adds, others, 0)
        want = terms.reshape(-1, lanes).cumsum(1).ravel()
        np.testing.assert_array_equal(found, want)


def test_no_moves():
    assert exchange_moves(GPUS["gfx942"], 32) is None
    assert exchange_moves(GPUS["sm_90a"], 1) is None
    assert all_reduce_moves(GPUS["sm_90a"], 2) is None
    assert scan_moves(GPUS["sm_90a"], 2) is None
