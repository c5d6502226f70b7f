"""Groups without choices: none of the zoo's models spends time on them that tuning could save."""

import pytest

from benchmarks import zoo
from benchmarks.design_spaces.__main__ import render, surveyed


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mobilenet_v2", "t5_small_enc"])
def test_groups_without_choices_take_little(name):
    found = surveyed(zoo.load(name, 0), "cpu")
    assert found["tasks"] > 3
    assert found["share"] <= 0.02


def test_the_page_has_shares_of_templates():
    one = {
        "tasks": 4,
        "fixed": 1,
        "symbolic": 0,
        "share": 0.0213,
        "largest": 0.0101,
        "templates": {"rows": 0.0213},
    }
    page = render({"cpu": {"some": one}})
    assert "| some | 4 | 1 | 2.1% | 1.0% | rows 2.1% |" in page
