"""The whole model with two choices of configurations, in turns; its final race."""

import numpy as np
import pytest
from tuned_models import QUICK, two_products

from tvm_fusion.config import FusionConfig
from tvm_fusion.device import parse
from tvm_fusion.frontend import import_model
from tvm_fusion.measure.isolate import Failed
from tvm_fusion.tuning import whole
from tvm_fusion.tuning.tasks import survey
from tvm_fusion.tuning.whole import DEFAULTS, WholeModel

pytestmark = pytest.mark.slow_beyond(2)


@pytest.fixture(scope="module")
def found():
    config = FusionConfig()
    imported = import_model(two_products(), config)
    return imported, survey(imported, parse("cpu"), config)


@pytest.fixture
def model(found):
    imported, tasks = found
    return WholeModel(imported, tasks.planned, parse("cpu"), 0, QUICK)


@pytest.mark.slow
@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize(
    ("times", "told"),
    [
        ([(90.0, 100.0), (60.0, 100.0)], (90.0, 100.0)),
        ([(90.0, 100.0), (105.0, 100.0)], (105.0, 100.0)),
        ([(103.0, 100.0), (101.0, 100.0)], (103.0, 100.0)),
    ],
)
def test_the_less_favourable_of_two_processes(model, monkeypatch, times, told):
    left = list(times)
    monkeypatch.setattr(whole, "isolated", lambda function, seconds: left.pop(0))
    race = model.judge(DEFAULTS)
    assert (race.us, race.default_us) == told
    assert race.gain == told[1] / told[0]


@pytest.mark.slow
def test_measured_for_real(model, found):
    """Other configurations of every task, of which each is built for one race."""
    _, tasks = found
    chosen = {task.key: task.configs[-1] for task in tasks.tasks}
    race = model.judge(chosen)
    assert race.error == ""
    assert 0 < race.us < np.inf
    assert 0 < race.default_us < np.inf
    assert len(model._built) == 2


@pytest.mark.slow
def test_defaults_stay_built(model, found):
    (task, *_) = found[1].tasks
    for config in task.configs[1:5]:
        model._build(DEFAULTS)
        model._build({task.key: config})
    assert len(model._built) == whole.KEPT
    assert frozenset() in model._built


@pytest.mark.slow
def test_other_results_are_told(model, found, monkeypatch):
    """A choice whose kernels compute something else: those of other weights."""
    config = FusionConfig()
    other = survey(import_model(two_products(seed=1), config), parse("cpu"), config).planned
    build_model = whole.build_model
    monkeypatch.setattr(
        whole,
        "build_model",
        lambda mod, chosen, spec: build_model(other if chosen else mod, {}, spec),
    )
    (task, *_) = found[1].tasks
    race = model.judge({task.key: task.configs[1]})
    assert "its results differ from the default's by" in race.error


@pytest.mark.slow
def test_a_model_that_crashes_is_told(model, monkeypatch):
    def crash(function, seconds):
        raise Failed("ended by SIGSEGV")

    monkeypatch.setattr(whole, "isolated", crash)
    race = model.judge(DEFAULTS)
    assert (race.error, race.gain) == ("ended by SIGSEGV", 1.0)
