"""Every special case has an owner: a planned model, or a benchmark that is named instead."""

from pathlib import Path

import pytest

from benchmarks import zoo
from benchmarks.owners.cases import KINDS, cases
from benchmarks.owners.counting import counted
from benchmarks.owners.reasons import REASONS
from benchmarks.owners.table import LAW_ROWS, page, render, stored, unused_laws, without_owner

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "laws"])
def test_what_no_model_needs_has_a_reason_and_a_benchmark(kind):
    unowned = without_owner(stored(), kind)
    assert set(unowned) == set(REASONS[kind])
    assert all((ROOT / REASONS[kind][name].benchmark).exists() for name in unowned)


def test_each_law_has_an_owner_or_is_counted_as_unused():
    text = page()
    unused = {name for names in unused_laws(stored()).values() for name in names}
    for name in cases()["laws"]:
        assert (name in unused) != (f"| {name} | " in text)
    assert (ROOT / LAW_ROWS).exists()


@pytest.mark.parametrize("kind", KINDS)
def test_the_record_names_what_there_is(kind):
    named = {name for counts in stored().values() for name in counts.get(kind, ())}
    assert named <= set(cases()[kind])


def test_a_case_without_owner_and_reason_is_no_page(monkeypatch):
    monkeypatch.delitem(REASONS["passes"], "GreedyEquivalents")
    with pytest.raises(KeyError, match="GreedyEquivalents"):
        render(stored())


@pytest.mark.slow
def test_counting_a_model():
    found = counted(zoo.load("mobilenet_v2", 0), "cuda:sm_90a", "fp16")
    assert found["templates"]["GPU: depthwise"] == 17
    assert found["forms"]["product: as it is"] > 0
    assert found["passes"]["ToHalfPrecision"] == 1
    assert "JoinMatmuls" not in found["passes"]
