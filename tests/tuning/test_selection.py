"""Which winners a model gets: those that make the whole of it faster, as races tell."""

import pytest

from tvm_fusion.measure.isolate import Failed
from tvm_fusion.tuning.whole import Selection, Winner


class Model:
    """Takes 1000 us, less what each chosen configuration gains in the model."""

    def __init__(self, gains, crashing=()):
        self.gains, self.crashing, self.races = gains, crashing, []

    def race(self, one, other):
        self.races.append((set(one), set(other)))
        if set(one) & set(self.crashing):
            raise Failed("ended by SIGSEGV")
        return tuple(1000.0 - sum(self.gains[key] for key in chosen) for chosen in (one, other))


def selected(model, alone, races=100):
    """Select among tasks named by letters; ``alone`` is what each gains by itself."""
    selection = Selection(model, lambda: len(model.races) < races)
    selection.run([Winner(key, {"of": key}, gain) for key, gain in alone.items()])
    assert all(config == {"of": key} for key, config in selection.chosen.items())
    return set(selection.chosen), selection.gain


ALONE = {"a": 40.0, "b": 30.0, "c": 20.0, "d": 10.0}


def test_all_at_once_where_they_gain_what_they_gain_alone():
    model = Model(ALONE)
    chosen, gain = selected(model, ALONE)
    assert chosen == set(ALONE)
    assert gain == pytest.approx(1000 / 900)
    assert len(model.races) == 1


def test_what_slows_the_model_is_left_out():
    model = Model({**ALONE, "b": -80.0})
    chosen, gain = selected(model, ALONE)
    assert chosen == {"a", "c", "d"}
    assert gain == pytest.approx(1000 / 930)


def test_what_crashes_is_left_out():
    assert selected(Model(ALONE, crashing="c"), ALONE)[0] == {"a", "b", "d"}


def test_small_gains_are_kept_together():
    """None of them gains half of what it gains alone, and all are faster together."""
    model = Model(dict.fromkeys("abcd", 4.0))
    assert selected(model, ALONE) == (set("abcd"), pytest.approx(1000 / 984))


def test_nothing_where_the_model_is_slower():
    assert selected(Model(dict.fromkeys("abcd", -1.0)), ALONE) == (set(), 1.0)


def test_the_time_is_kept():
    model = Model({**ALONE, "b": -80.0})
    chosen, _ = selected(model, ALONE, races=3)
    assert len(model.races) == 3
    assert chosen <= {"a", "c", "d"}
    assert selected(Model(ALONE), ALONE, races=0) == (set(), 1.0)
