"""The fit of the cost model: planted coefficients are found, and the table is of the samples."""

import numpy as np
import pytest

from benchmarks.cost_model import __main__ as command
from benchmarks.cost_model.fit import fit, predicted, rank_correlation
from benchmarks.prices import results
from benchmarks.records import columns, rows_of
from tvm_fusion.fusion import fitted
from tvm_fusion.fusion.features import NAMES

PLANTED = {
    "rows": {"launches": 1.0, "cached_kib": 0.01, "vector_mflop": 2.0, "element_loads": 2.0},
    "contraction": {"weight_kib": 0.02, "matrix_mflop": 8.0, "element_loads": 2.0},
    "contraction, modelled": {"launches": 0.5, "kiloclocks": 0.4, "element_loads": 2.0},
}
KEPT = ("matrix_mflop", "kiloclocks")  # of which a claim has one


def row_of(coefficients):
    return [coefficients.get(name, 0.0) for name in NAMES]


def drawn(count, noise):
    rng = np.random.default_rng(2)
    rows = []
    for kind, coefficients in PLANTED.items():
        template, _, is_modelled = kind.partition(", ")
        for _ in range(count):
            features = dict.fromkeys(NAMES, 1.0)
            features |= {name: float(10 ** rng.uniform(0, 3)) for name in NAMES[1:]}
            features[KEPT[not is_modelled]] = 0.0
            us = float(np.dot(row_of(coefficients), [*features.values()]))
            us *= float(np.exp(noise * rng.normal()))
            rows.append({"template": template, "us": us, **features})
    return rows


def test_planted_coefficients_are_found():
    """Of features that a kind has: those of others are what all kinds have together."""
    found = fit(drawn(30, 0.0))
    for kind, planted in PLANTED.items():
        absent = KEPT["modelled" not in kind]
        kept = {**dict(zip(NAMES, found[kind], strict=True)), absent: 0.0}
        assert row_of(kept) == pytest.approx(row_of(planted), rel=0.05, abs=0.05)


def test_claims_that_run_one_after_the_other_are_taken_apart():
    single = drawn(30, 0.0)
    pairs = [
        {"us": one["us"] + other["us"], "claims": [one, other]}
        for one, other in zip(single, reversed(single), strict=True)
    ]
    found = fit(pairs)
    errors = [abs(predicted(one, found) / one["us"] - 1) for one in single]
    assert np.median(errors) < 0.02
    assert predicted(pairs[0], found) == pytest.approx(pairs[0]["us"], rel=0.05)


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
    data = command.load() | command.counted() | command.cpus_of_models()
    counts = [len(device["rows"]) for device in data.values()]
    assert [one.provenance["kernels"] for one in fitted.fits().values()] == counts
    templates = {row["template"] for device in data.values() for row in device["rows"]}
    assert all(f"| {name} |" in (command.HERE / "README.md").read_text() for name in templates)


@pytest.mark.parametrize(
    ("target", "most"), [("cuda:sm_90a", 0.15), ("cpu:sapphirerapids, 2 threads", 0.2)]
)
def test_what_ships_prices_groups_that_were_measured_later(target, most):
    rows = [row for row in results.load()[target]["rows"] if row.get("us", {}).get("fused", 0) > 3]
    ratios = [results.price(row, target) / row["us"]["fused"] for row in rows]
    errors = sorted(max(ratio, 1 / ratio) - 1 for ratio in ratios)
    assert len(errors) > 400
    assert errors[len(errors) // 2] < most


def test_rows_of_a_table_come_back():
    rows = [{"us": 1.5, "names": ["a"]}, {"us": 2.0}, {"failed": "a crash"}]
    assert rows_of(columns(rows)) == rows


def test_no_feature_costs_less_than_the_device_takes():
    rows = [{"template": "rows", "us": 1.0, "launches": 1.0, "other_kib": 10.0} for _ in range(9)]
    free = fit(rows)["rows"][NAMES.index("other_kib")]
    bounded = fit(rows, lambda kind: {"other_kib": 0.05})
    assert free < 0.05
    for row in bounded.values():
        assert row[NAMES.index("other_kib")] >= 0.05
    assert predicted(rows[0], bounded) == pytest.approx(1.0, rel=0.05)
