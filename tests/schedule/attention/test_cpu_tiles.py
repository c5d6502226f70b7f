"""The default tiles of attention on CPUs: what the model of two products chooses."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from tvm import tirx

from tvm_fusion.device import parse
from tvm_fusion.schedule.attention.config_cpu import CpuConfig, configs

WIDE, NARROW = parse("cpu:x86-64-v4").device, parse("cpu:x86-64-v3").device


def pattern(heads, queries, keys, depth):
    """The extents that the choice reads."""

    def axis(extent):
        return SimpleNamespace(extent=tirx.IntImm("int32", extent))

    query = axis(queries) if queries > 1 else None
    return SimpleNamespace(
        batch=[axis(heads)], query=query, key=axis(keys), depth=axis(depth), column=axis(depth)
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
