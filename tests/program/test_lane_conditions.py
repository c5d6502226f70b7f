"""Comparisons of channels lose their lanes where blocks lie on one side, and only there."""

import itertools

import pytest
from tvm import ir, sym, tirx

from tvm_fusion._tvm.ir.buffer import declare
from tvm_fusion.core.tir.expressions import substitute, variables
from tvm_fusion.program.lane_conditions import decide_for_blocks
from tvm_fusion.program.stage import Axis, Stage

LANES, BLOCKS = 4, 5


def whole(value):
    return tirx.IntImm("int64", value)


def decided(make):
    block, lane = (Axis(ir.Var(n, ir.PrimType("int64")), whole(e)) for n, e in AXES)
    condition = make(block.var * whole(LANES) + lane.var)
    target = declare([whole(BLOCKS), whole(LANES)], "float32", "y")
    value = tirx.if_then_else(condition, tirx.const(1, "float32"), tirx.const(0, "float32"))
    where = ((block.var, lane.var),)
    stage = Stage("s", (block, lane), (), (target,), where, (value,), None)
    found = decide_for_blocks(stage).values[0].args[0]
    for b, k in itertools.product(range(BLOCKS), range(LANES)):
        at = {block.var: whole(b), lane.var: whole(k)}
        assert evaluate(substitute(condition, at)) == evaluate(substitute(found, at)), (b, k)
    return lane.var in variables(found)


AXES = (("block", BLOCKS), ("lane", LANES))


def evaluate(expr):
    return int(sym.Analyzer().simplify(expr))


@pytest.mark.parametrize("bound", range(1, 18))
@pytest.mark.parametrize(
    "compare",
    [
        lambda c, b: c < whole(b),
        lambda c, b: c >= whole(b),
        lambda c, b: whole(b) <= c,
        lambda c, b: whole(b) > c,
        lambda c, b: c <= whole(b - 1),
        lambda c, b: c > whole(b - 1),
    ],
)
def test_lanes_stay_where_a_block_is_divided(compare, bound):
    has_lanes = decided(lambda c: compare(c, bound))
    assert has_lanes == (bound % LANES != 0)
