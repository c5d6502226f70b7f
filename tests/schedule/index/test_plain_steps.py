"""The step of plain accesses is what the analyzer finds."""

import random

from tvm import ir, tirx

from tvm_fusion._tvm.ir.buffer import declare
from tvm_fusion.core.tir.loops import constant
from tvm_fusion.schedule.index.address import _plain_step, known_step, offset, stride

NUMBERS = [tirx.IntImm("int64", number) for number in (1, 3, 7, 16)]


def test_plain_steps_are_those_of_the_analyzer():
    axes = [ir.Var(name, ir.PrimType("int64")) for name in "ijk"]
    symbol = tirx.Var("n", "int64")
    plain = 0
    for _ in range(60):
        rank = random.randrange(1, 5)
        extents = [random.choice([1, 3, 7, 16, symbol]) for _ in range(rank)]
        buffer = declare(
            [tirx.IntImm("int64", e) if e is not symbol else e for e in extents], "float32", "b"
        )
        zero = tirx.IntImm("int64", 0)
        indices = [random.choice([*axes, zero, axes[0] + axes[1]]) for _ in range(rank)]
        for axis in axes:
            found = stride(offset(buffer, indices), axis, axes)
            wanted = None if found is None else constant(found)
            quick = _plain_step(buffer, indices, axis)
            assert quick in (None, wanted)
            assert known_step(buffer, indices, axis, axes) == wanted
            plain += quick is not None
    assert plain > 30


def test_what_is_not_plain_is_left_to_the_analyzer():
    i, n = ir.Var("i", ir.PrimType("int64")), tirx.Var("n", "int64")
    rows = declare([tirx.IntImm("int64", 5), n], "float32", "b")
    zero = tirx.IntImm("int64", 0)
    assert _plain_step(rows, [i, zero], i) is None
    assert _plain_step(rows, [zero, i], i) == 1
    assert _plain_step(rows, [zero, i * 2], i) is None
    assert known_step(rows, [zero, i * 2], i, [i]) == 2
