"""Proofs about index arithmetic."""

import pytest
from tvm import ir, sym, tirx
from tvm.sym.iter_affine_map import IterMapLevel

from tvm_fusion.core.tir.expressions import substitute
from tvm_fusion.program.domain import Domain
from tvm_fusion.program.stage import Axis

AXIS, N = tirx.Var("i", "int64"), tirx.Var("n", "int64")
FOUR = tirx.IntImm("int64", 4)


@pytest.mark.parametrize("groups", [tirx.IntImm("int64", 5), N])
@pytest.mark.parametrize("division", [tirx.floordiv, tirx.floormod])
def test_positions_from_the_end_keep_their_divisions(groups, division):
    value = division(groups * FOUR - AXIS - 1, FOUR)
    simple = Domain([Axis(AXIS, groups * FOUR)]).simplify(value)
    analyzer = sym.Analyzer()
    for place in range(20):
        point = {AXIS: tirx.IntImm("int64", place), N: tirx.IntImm("int64", 5)}
        found = analyzer.simplify(substitute(simple, point))
        assert int(found) == ((19 - place) // 4 if division is tirx.floordiv else (19 - place) % 4)


def test_tvm_still_divides_by_negative_numbers():
    """Fails when TVM's normal form is right: then negative parts need no special care."""
    axis = {AXIS: ir.Range.from_min_extent(tirx.IntImm("int64", 0), tirx.IntImm("int64", 20))}
    value = tirx.floordiv(19 - AXIS, FOUR)
    found = sym.detect_iter_map([value], axis, True, IterMapLevel.NoCheck, True)
    normal = sym.normalize_iter_map_to_expr(found.indices[0])
    at_one = substitute(normal, {AXIS: tirx.IntImm("int64", 1)})
    assert int(sym.Analyzer().simplify(at_one)) != 18 // 4
