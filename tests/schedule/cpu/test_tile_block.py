"""Blocks of tile registers against exact sums of small integers, and in the assembler."""

import re

import numpy as np
import pytest
import tvm
from emulator.tiles import tiles_of
from tvm import tirx

from tests.schedule.instructions.registers import drawn, name_of
from tvm_fusion._tvm.ir.buffer import declare
from tvm_fusion.core.tir.expressions import load
from tvm_fusion.core.tir.loops import block, index, sequence
from tvm_fusion.device import parse
from tvm_fusion.schedule.cpu.tile_block import TileBlock, fits, heights_of
from tvm_fusion.schedule.instructions.cpu import CPU
from tvm_fusion.schedule.instructions.tiles import TileAddress, configure, release, tile_config

TILES = [row for row in CPU if row.family == "amx"]
STEPS = 3


def kernel(tiles, is_cleared=True):
    """Multiply A, row-major, by B in VNNI order; C is as wide as the block, A is wider than K."""
    row, rows, width = tiles.row, sum(tiles.heights), 16 * tiles.columns
    group = row.k // 16
    k = tiles.words * group
    a = declare([rows, STEPS * k + group], row.a_types[0], "a")
    b = declare([STEPS * tiles.words, width * group], row.b_types[0], "b")
    c = declare([rows, width], row.sums, "c")

    def at(buffer, row_, column, bytes_):
        stride = int(buffer.ty.shape[1]) * bytes_
        return TileAddress(load(buffer, [index(row_), index(column)]), stride)

    def a_tile(i, step):
        return at(a, 16 * i, step * k, 4 // group)

    def b_tile(j, step):
        return at(b, step * tiles.words, 16 * group * j, 4 // group)

    def c_tile(i, j):
        return at(c, 16 * i, 16 * j, 4)

    config = tile_config()
    begin = tiles.clear() if is_cleared else tiles.load(c_tile)
    stmts = [configure(config, tiles.shapes()), begin, tiles.accumulate(STEPS, a_tile, b_tile)]
    body = block("root", sequence([*stmts, tiles.store(c_tile), release()]), [config])
    func = tirx.PrimFunc([a, b, c], body)
    return func.with_attrs({"global_symbol": "main", "s_tir": True, "tirx.noalias": True})


def built(func, target):
    mod = tvm.IRModule({"main": func})
    return tvm.tirx.build(mod, parse(target).tvm_target(), pipeline="tvm_fusion")


@pytest.mark.parametrize("row", TILES, ids=name_of)
@pytest.mark.parametrize(("rows", "columns", "words"), [(32, 2, 16), (21, 2, 5), (1, 4, 16)])
def test_products(tiles, row, rows, columns, words):
    rng = np.random.default_rng()
    made = TileBlock(row, heights_of(rows), columns, words)
    group, width = row.k // 16, 16 * columns
    k = STEPS * words * group
    a = drawn(rng, row.a_types[0], (rows, k + group))
    b = drawn(rng, row.b_types[0], (k, width))
    c = drawn(rng, row.sums, (rows, width))
    vnni = b.reshape(-1, group, width).transpose(0, 2, 1).reshape(-1, width * group)
    product = a[:, :k].astype("float64") @ b.astype("float64")
    target, feature = tiles_of(row.kind)

    def call():
        found = []
        for is_cleared in (True, False):
            given = [tvm.runtime.tensor(np.ascontiguousarray(x)) for x in (a, vnni, c)]
            built(kernel(made, is_cleared), target)["main"](*given)
            found.append(given[2].numpy())
        return found

    cleared, added = tiles.run(call, feature)
    np.testing.assert_array_equal(cleared, product)
    np.testing.assert_array_equal(added, product + c)


@pytest.mark.parametrize("rows", [16, 32])
def test_loads_are_few(rows):
    """In the loop four products take four loads, or five, and nothing spills."""
    heights = heights_of(rows)
    tiles = TileBlock(TILES[0], heights, 4 // len(heights))
    text = built(kernel(tiles), "cpu:sapphirerapids").inspect_source("asm")
    assert len(re.findall(r"\ttdpbf16ps\t", text)) == 4 * STEPS  # the loop is unrolled
    assert len(re.findall(r"\ttileloadd\t", text)) == (4 if rows == 32 else 5) * STEPS
    assert len(re.findall(r"\ttilestored\t", text)) == 4


def test_blocks_that_fit():
    assert [(r, c) for r in (1, 2, 3) for c in range(1, 8) if fits(r, c)] == [
        *((1, c) for c in range(1, 7)),
        *((2, c) for c in (1, 2)),
        (3, 1),
    ]
    assert heights_of(37) == (16, 16, 5)
    with pytest.raises(ValueError, match="3 x 2 tiles"):
        TileBlock(TILES[0], (16, 16, 16), 2)
