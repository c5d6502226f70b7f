"""The kernel benchmark: a peak made of registers, reproducible shapes, tables that render."""

import re

import pytest

from benchmarks.kernels import __main__ as command
from benchmarks.kernels import cases, machine, measure


def test_the_peak_counts_what_it_does():
    run, operations = machine.multiply_adds(1)
    run()
    assert operations % (2 * machine.SUMS * machine.STEPS) == 0


def test_shapes_are_drawn_from_a_seed():
    assert cases.drawn() == cases.drawn()
    assert len({case.name for case in cases.drawn()}) == cases.DRAWN


@pytest.mark.slow
def test_a_product_is_checked_and_rendered():
    row = measure.product(cases.Product(33, 40, 50))
    assert row["error"] < 1e-5
    empty = {key: [] for key in ("drawn", "vectors", "rows", "norms")}
    found = {"peak": 2 * row["ours"], "read": 10.0, **empty}
    text = command.render({"threads": {"1": {**found, "squares": [row]}}})
    assert re.search(r"\| 33x40x50 constant \| \d+ \| 50% \| ", text)


@pytest.mark.slow
def test_norms_are_measured_both_ways():
    row = measure.norm(3)
    assert row["rows"] == 3
    assert row["apart"] > 0
    assert row["together"] > 0
