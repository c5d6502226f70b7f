"""Budgets: times and numbers of trials, and what is neither."""

import pytest

from tvm_fusion.errors import UserError
from tvm_fusion.measure import budget
from tvm_fusion.measure.budget import Budget


@pytest.mark.parametrize(
    ("text", "seconds", "trials"),
    [("90s", 90, None), ("30m", 1800, None), ("1.5h", 5400, None), ("trials=20", None, 20)],
)
def test_forms(text, seconds, trials):
    read = Budget.parse(text)
    assert (read.seconds, read.trials) == (seconds, trials)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "budget ''; expected a time such as"),
        ("soon", "budget 'soon'; expected a time such as 90s, 30m or 2h, or trials=2000."),
        ("-5m", "budget '-5m'; expected"),
        ("30", "budget '30'; expected"),
        ("trials=0", "budget 'trials=0' allows no trial; expected"),
        ("0s", "budget '0s' is shorter than one trial; expected at least 1 s"),
        ("0.2s", "is shorter than one trial"),
    ],
)
def test_mistakes(text, words):
    with pytest.raises(UserError) as error:
        Budget.parse(text)
    assert words in str(error.value)


def test_trials_are_counted():
    read = Budget.parse("trials=3")
    assert [read.is_spent(n) for n in (0, 2, 3, 4)] == [False, False, True, True]
    assert read.describe(1) == "2 trials left"


def test_time_passes(monkeypatch):
    now = 100.0
    monkeypatch.setattr(budget.time, "monotonic", lambda: now)
    read = Budget(90.0, None, now)
    now = 175.0
    assert not read.is_spent(10**6)
    assert read.describe(0) == "0:15 left"
    now = 190.0
    assert read.is_spent(0)
