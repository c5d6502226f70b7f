"""Extents of buffers that tiles are loaded from, behind TVM's CompactBufferAllocation."""

import pytest
import tvm
from tvm import s_tir, tirx

from tvm_fusion._tvm.ir.buffer import declare
from tvm_fusion._tvm.ir.structural import structural_walk
from tvm_fusion.core.tir.expressions import load
from tvm_fusion.core.tir.loops import block, index, loop, sequence
from tvm_fusion.schedule.instructions.tiles import TileAddress, keep_extents, load_tile

ROWS, COLUMNS = 16, 320


def compacted(first_column, is_kept):
    """Return the extents of a buffer whose tiles begin at ``first_column(outer, inner)``."""
    lines = declare([index(ROWS), index(COLUMNS)], "bfloat16", "lines", "local")

    def tile(outer, inner):
        element = load(lines, [index(0), first_column(outer, inner)])
        return load_tile(0, TileAddress(element, COLUMNS * 2))

    def task(outer):
        kept = [keep_extents(lines)] if is_kept else []
        tiles = loop("inner", tirx.min(index(3), 10 - outer * 3), lambda i: tile(outer, i))
        return block("task", sequence([*kept, tiles]), [lines])

    func = tirx.PrimFunc([], block("root", loop("outer", 4, task)))
    mod = tvm.IRModule({"main": func.with_attr("s_tir", True)})
    for made in (s_tir.transform.ConvertBlocksToOpaque, s_tir.transform.CompactBufferAllocation):
        mod = made()(mod)
    found = []
    structural_walk(mod["main"].body, (s_tir.SBlock, lambda b: found.extend(b.alloc_buffers)))
    (buffer,) = found
    return [int(extent) for extent in buffer.ty.shape]


@pytest.mark.parametrize(
    ("first_column", "of_tvm"),
    [
        pytest.param(lambda _outer, _inner: index(0), [1, 1], id="only the first element"),
        # Ten tiles of 32 columns, three a task: the loops of the last task end after one.
        pytest.param(
            lambda o, i: tirx.floordiv((o * 3 + i) * 32, index(64)) * 64,
            [1, 321],
            id="beyond the last tile",
        ),
    ],
)
def test_extents(first_column, of_tvm):
    assert compacted(first_column, is_kept=True) == [ROWS, COLUMNS]
    # TVM's bug: without it, nothing needs to be kept.
    assert compacted(first_column, is_kept=False) == of_tvm
