"""The default tiles of attention on CPUs: what the model of two products chooses."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from tvm import tirx

from tvm_fusion.device import parse
from tvm_fusion.schedule.attention.cpu.config import CpuConfig, configs
from tvm_fusion.schedule.attention.cpu.query_lanes_config import QueryLanesConfig, default

WIDE, NARROW = parse("cpu:x86-64-v4").device, parse("cpu:x86-64-v3").device


def pattern(heads, queries, keys, depth):
    """The extents that the choice reads."""

    def axis(extent):
        return SimpleNamespace(extent=tirx.IntImm("int32", extent))

    query = axis(queries) if queries > 1 else None
    raw, exponential = (tirx.Var(name, "float32") for name in ("raw", "exponential"))
    return SimpleNamespace(
        operand_dtypes=("float32",) * 3,
        batch=[axis(heads)],
        query=query,
        key=axis(keys),
        depth=axis(depth),
        column=axis(depth),
        raw=raw,
        score=raw * tirx.const(0.125, "float32"),
        exponential=exponential,
        weight=exponential,
        masked_weight=None,
    )


@pytest.mark.parametrize(
    ("shape", "vectors", "rows"),
    [
        ((8, 256, 256, 8), 2, 13),  # one vector of values: tall, so that sums do not wait
        ((8, 64, 64, 16), 2, 13),
        ((12, 384, 384, 64), 4, 6),
        ((12, 128, 128, 64), 4, 4),  # 6 would compute 132 queries
        ((8, 1024, 77, 40), 3, 8),  # 64 elements would compute 128 keys
        ((12, 1, 128, 64), 4, 1),
    ],
)
def test_tiles_fit_heads(shape, vectors, rows):
    found = CpuConfig.of(pattern(*shape), WIDE)
    assert (found.lanes, found.vectors, found.rows) == (16, vectors, rows)
    assert found.block % rows == 0


def test_sixteen_registers_hold_smaller_tiles():
    found = CpuConfig.of(pattern(12, 384, 384, 64), NARROW)
    assert (found.lanes, found.vectors, found.rows) == (8, 2, 6)


@pytest.mark.parametrize(("cores", "blocks"), [(None, 4), (1, 1), (2, 1), (8, 4), (64, 4)])
def test_heads_are_split_where_cores_want_tasks(cores, blocks):
    """Keys are packed once a task; a task has 64 queries at least."""
    found = CpuConfig.of(pattern(8, 256, 256, 64), replace(WIDE, cores=cores))
    assert -(-256 // found.block) == blocks


def test_no_tile_of_the_space_takes_fewer_cycles():
    shape = pattern(3, 100, 90, 24)
    default, *others = configs(shape, WIDE)
    assert default.cycles(100, 90) <= min(one.cycles(100, 90) for one in others)


@pytest.mark.parametrize(
    ("shape", "device", "tile"),
    [
        ((16, 256, 256, 8), WIDE, (2, 8)),
        ((2, 784, 49, 32), WIDE, (2, 10)),
        ((16, 256, 256, 8), NARROW, (1, 13)),
        ((2, 784, 49, 32), NARROW, None),  # four vectors of values: as fast by keys
        ((12, 197, 197, 64), WIDE, None),
        ((8, 33, 64, 8), WIDE, None),  # 31 of 64 queries would be computed twice
        ((8, 24, 64, 8), WIDE, None),
        ((8, 64, 4096, 8), WIDE, None),  # scores of all keys would leave the near cache
        ((8, 1, 64, 8), WIDE, None),
    ],
)
def test_small_heads_have_queries_as_lanes(shape, device, tile):
    found = default(pattern(*shape), device)
    assert isinstance(found, QueryLanesConfig) == (tile is not None)
    if tile is not None:
        assert (found.vectors, found.rows) == tile
        assert found.block % found.width == 0


def test_scores_of_a_mask_have_keys_as_lanes():
    masked = pattern(16, 256, 256, 8)
    masked.score += tirx.Var("position", "int64").astype("float32")
    assert not isinstance(default(masked, WIDE), QueryLanesConfig)
