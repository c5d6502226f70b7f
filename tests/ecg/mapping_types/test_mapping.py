"""The table of mapping types, cell by cell against the paper's rules in prose."""

from collections import Counter

import pytest

from tvm_fusion.ecg.mapping_types.table import (
    TABLE,
    Cell,
    MappingType,
    Relation,
    combine,
    most_complex,
)

OTO, REO, SHU = MappingType.ONE_TO_ONE, MappingType.REORGANIZE, MappingType.SHUFFLE
OTM, MTM, OPAQUE = MappingType.ONE_TO_MANY, MappingType.MANY_TO_MANY, MappingType.OPAQUE
FIVE = (OTO, REO, SHU, OTM, MTM)


def test_all_cells_are_there():
    assert set(TABLE) == {(first, second) for first in FIVE for second in FIVE}
    counts = Counter(cell.relation for cell in TABLE.values())
    assert counts == {Relation.THROUGH: 13, Relation.DEPEND: 10, Relation.BREAK: 2}


@pytest.mark.parametrize("other", FIVE)
def test_one_to_one_fuses_with_everything_and_changes_no_type(other):
    assert combine(OTO, other) == combine(other, OTO) == Cell(other, Relation.THROUGH)


@pytest.mark.parametrize("first", [OTM, MTM])
def test_nothing_spreads_into_many_to_many(first):
    assert combine(first, MTM) == Cell(None, Relation.BREAK)
    assert combine(first, OTM) == Cell(first, Relation.DEPEND)


@pytest.mark.parametrize("moved", [REO, SHU])
@pytest.mark.parametrize("many", [OTM, MTM])
def test_movement_beside_many_has_to_pay(moved, many):
    assert combine(moved, many) == combine(many, moved) == Cell(many, Relation.DEPEND)


def test_two_movements_are_one_movement():
    assert combine(SHU, SHU) == Cell(SHU, Relation.THROUGH)
    for pair in [(REO, REO), (REO, SHU), (SHU, REO)]:
        assert combine(*pair) == Cell(REO, Relation.THROUGH)


@pytest.mark.parametrize("other", MappingType)
def test_opaque_fuses_with_nothing(other):
    assert combine(OPAQUE, other) == combine(other, OPAQUE) == Cell(OPAQUE, Relation.BREAK)


def test_order_of_complexity():
    assert [kind.complexity for kind in (*FIVE, OPAQUE)] == list(range(6))
    assert most_complex([REO, MTM, OTM]) is MTM
    assert most_complex([OPAQUE, MTM]) is OPAQUE
    assert most_complex([]) is OTO
