"""The order of FlashAttention's blocks: each tile of queries once, the longest ones first."""

import itertools

import pytest
import tvm
from group_kernels import CUDA, group
from test_constant_masks import by_positions, folded
from test_flash_mma import HALF, problem_of, visible
from tvm import tirx

from tests.schedule.attention.attention_graphs import PLAIN, tensors
from tvm_fusion.core.tir.expressions import variables
from tvm_fusion.core.tir.loops import substitute
from tvm_fusion.schedule.attention.flash import grid as flash_grid
from tvm_fusion.schedule.attention.flash.block import KeyTiles
from tvm_fusion.schedule.attention.flash.model import configs
from tvm_fusion.schedule.attention.flash.problem import flash_problem
from tvm_fusion.schedule.attention.problem.constants import read_group


def blocks_of(problem):
    """Position along the batch, first row and tiles of keys of each block, in order."""
    config = next(c for c in configs(problem, CUDA.device) if (c.block_m, c.block_n) == (32, 16))
    given = []

    def write(where, first):
        given.append((where, first, KeyTiles(problem, config, where, first).count))
        return tirx.Evaluate(0)

    grid = flash_grid.query_blocks(problem, config, write)
    ((where, first, count),) = given
    (number,) = {v for x in (first, *where.values()) for v in variables(x)}
    axes = [where[axis.var] for axis in problem.pattern.batch]
    analyzer = tvm.sym.Analyzer()

    def at(expr, block):
        return int(analyzer.simplify(substitute(expr, {number: tirx.IntImm("int64", block)})))

    axis_extents = [range(int(a.extent)) for a in problem.pattern.batch]
    heads = list(itertools.product(*axis_extents))
    rows = range(0, int(problem.query.extent), 32)
    places = [(head, row) for head in heads for row in rows]
    found = [
        (tuple(at(x, i) for x in axes), at(first, i), at(count, i)) for i in range(len(places))
    ]
    assert int(grid.extent) == len(places)
    assert sorted(f[:2] for f in found) == places
    return found


@pytest.mark.parametrize("heads_at_once", [1, 2, 6, 100])
def test_sections_of_heads_begin_with_the_longest_blocks(heads_at_once, monkeypatch):
    """As many heads as have their keys and values in the last cache, of those that divide all."""
    params = tensors(2, 3, 100, 100, 32, dtype=HALF)
    _, problem = problem_of(params, visible(100, 100)[0])
    monkeypatch.setattr(flash_grid, "SECTION_BYTES", heads_at_once * 100 * 64 * 2)
    found, size = blocks_of(problem), min(heads_at_once, 6) * 4
    for begin in range(0, 24, size):
        tiles = [count for _, _, count in found[begin : begin + size]]
        assert tiles == sorted(tiles, reverse=True)
        assert len({head for head, _, _ in found[begin : begin + size]}) == size // 4


def test_folded_heads_are_heads_of_a_section():
    members = group(folded(3, 64), by_positions(3, 64)[0], CUDA)
    found = blocks_of(flash_problem(read_group(members)))
    tiles = [count for _, _, count in found]
    assert tiles == [4] * 6 + [2] * 6


@pytest.mark.parametrize("options", [None, {"window": 20}])
def test_blocks_of_one_length_stay_in_the_order_of_rows(options):
    body = PLAIN[0] if options is None else visible(100, 100, **options)[0]
    found = blocks_of(problem_of(tensors(1, 2, 100, 100, 32, dtype=HALF), body)[1])
    assert [head[-1] for head, _, _ in found] == [0] * 4 + [1] * 4
