"""The fit of the cost model: planted coefficients are found, and the table is of the samples."""

import numpy as np
import pytest

from benchmarks.cost_model import __main__ as command
from benchmarks.cost_model.fit import fit, predicted, rank_correlation
from benchmarks.records import columns, rows_of
from tvm_fusion.fusion import fitted
from tvm_fusion.fusion.features import NAMES

PLANTED = {"rows": [1.0, 0.0, 0.01, 0.0, 0.0, 2.0], "contraction": [0.5, 0.02, 0.0, 0.0, 8.0, 0.0]}


def drawn(count, noise):
    rng = np.random.default_rng(2)
    rows = []
    for template, coefficients in PLANTED.items():
        for _ in range(count):
            features = [1.0, *(10 ** rng.uniform(0, 3, 5))]
            us = float(np.dot(coefficients, features)) * float(np.exp(noise * rng.normal()))
            rows.append({"template": template, "us": us, **dict(zip(NAMES, features, strict=True))})
    return rows


def test_planted_coefficients_are_found():
    found = fit(drawn(30, 0.0))
    for template, planted in PLANTED.items():
        assert found[template] == pytest.approx(planted, rel=0.05, abs=0.05)


def test_predictions_are_as_good_as_the_measurements():
    rows = drawn(30, 0.1)
    found = fit(rows)
    errors = [abs(predicted(row, found) / row["us"] - 1) for row in rows]
    assert np.median(errors) < 0.12
    us = [row["us"] for row in rows]
    assert rank_correlation([predicted(row, found) for row in rows], us) > 0.97


@pytest.mark.slow
def test_unknown_templates_have_the_coefficients_of_all():
    rows = drawn(5, 0.0)
    found = fit(rows)
    other = {**rows[0], "template": "other"}
    assert predicted(other, found) == pytest.approx(
        np.dot(found[""], [rows[0][name] for name in NAMES])
    )


def test_what_ships_is_of_the_samples():
    data = command.load()
    counts = [len(device["rows"]) for device in data.values()]
    assert [one.provenance["kernels"] for one in fitted.fits().values()] == counts
    templates = {row["template"] for device in data.values() for row in device["rows"]}
    assert all(f"| {name} |" in (command.HERE / "README.md").read_text() for name in templates)


def test_rows_of_a_table_come_back():
    rows = [{"us": 1.5, "names": ["a"]}, {"us": 2.0}, {"failed": "a crash"}]
    assert rows_of(columns(rows)) == rows
