"""PyTorch's operator samples: no wrong result, no crash, no hang; the record and its page."""

import os
import random

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest")  # which torch's operator database imports
pytestmark = [pytest.mark.torch, pytest.mark.slow]

# Of those that the record has; the same in every run, or others that OPERATORS_SEED names.
CASES, PARTS = 40, 2


def test_the_record_is_clean_and_its_page_is_generated():
    from benchmarks import records
    from benchmarks.operators_torch import __main__ as command
    from benchmarks.operators_torch.table import counts, defects, page

    stored = records.read(command.RECORD)
    totals = counts(stored["operators"])
    assert not defects(stored["operators"])
    right = sum(total["right"] for total in totals.values())
    programs = sum(n for t in totals.values() for o, n in t.items() if o != "no program")
    assert right >= 0.6 * programs
    assert (command.HERE / "README.md").read_text() == page(stored)


@pytest.mark.parametrize("part", range(PARTS))
def test_drawn_cases_are_right_or_refused(part):
    from benchmarks.operators_torch.samples import cases
    from benchmarks.operators_torch.sweep import sweep
    from benchmarks.operators_torch.table import BAD

    seed = int(os.environ.get("OPERATORS_SEED", "0"))
    drawn = random.Random(seed).sample([*cases()], CASES)[part::PARTS]
    found = [
        (result.name, result.dtype, outcome)
        for result in sweep(drawn, most=1, jobs=1, limit=120)
        for outcome in result.outcomes
    ]
    bad = [case for case in found if case[2]["outcome"] in BAD]
    assert not bad, f"OPERATORS_SEED={seed}: {bad}"
    assert sum(outcome["outcome"] == "right" for _, _, outcome in found) > len(drawn) // 4


def test_a_worker_that_dies_or_hangs_costs_one_sample(monkeypatch):
    from benchmarks.operators_torch import sweep as module

    answers = [
        '{"start": -1}',
        None,
        '{"start": 0}',
        '{"number": 0, "outcome": "right"}',
        '{"start": 1}',
        "",
        '{"end": 2}',
    ]

    class Worker(module._Worker):
        def __init__(self, limit):
            self._limit = limit

        def line(self, limit):
            return answers.pop(0)

        def send(self, line):
            pass

        def ended(self):
            return "the process ended with -11"

        def close(self):
            pass

    monkeypatch.setattr(module, "_Worker", Worker)
    (result,) = module.sweep([("add", "float32")], 2, 1, 1.0)
    assert [(o["number"], o["outcome"]) for o in result.outcomes] == [(0, "right"), (1, "crash")]


def test_differences_are_told():
    from benchmarks.operators_torch.compare import difference
    from benchmarks.operators_torch.samples import Sample

    x = torch.tensor([1.0, 2.0])
    sample = Sample(torch.nn.Identity(), (x,))
    assert not difference(sample, [x], [x.numpy()])
    assert "2 results" in difference(sample, [x], [x.numpy()] * 2)
    assert "float64" in difference(sample, [x], [x.double().numpy()])
    assert "shape" in difference(sample, [x], [x[None].numpy()])
    assert "2.5 instead of 2.0 at 1" in difference(sample, [x], [(x + x.ge(2) / 2).numpy()])
