"""The width of vectors of rows whose elements are in blocks.

``x[c // 16, ..., c % 16]`` is contiguous within a block alone: a vector over several blocks would
be read element by element.
"""

from __future__ import annotations

from tvm import ir, tirx

from ..._tvm.structural import structural_walk
from ...core.loops import constant
from .row_program import RowProgram


def width_in_blocks(program: RowProgram, width: int) -> int:
    """Limit the width of vectors to the smallest block that it is a multiple of.

    Parameters
    ----------
    program : RowProgram
        Stages over common rows.
    width : int
        Elements of a vector.
    """
    divisions: list[ir.Expr] = []
    for stage in program.stages:
        places = [*stage.indices, *(load.indices for load in stage.loads)]
        for index in (i for place in places for i in place):
            structural_walk(index, (tirx.FloorMod, divisions.append))
    blocks = (constant(d.b) for d in divisions)
    return min([width, *(b for b in blocks if b and b > 1 and width % b == 0)])
