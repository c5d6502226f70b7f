"""The race of the whole model: the less favourable of two processes is told."""

import numpy as np
import pytest
from tuned_models import QUICK, two_products

from tvm_fusion.config import FusionConfig
from tvm_fusion.device import parse
from tvm_fusion.frontend import import_model
from tvm_fusion.fusion.records import Records
from tvm_fusion.measure.isolate import Failed
from tvm_fusion.tuning import whole
from tvm_fusion.tuning.whole import race_models


@pytest.fixture
def race(tmp_path):
    def run():
        config = FusionConfig()
        path = tmp_path / "r.db"
        Records.open(path).close()
        imported = import_model(two_products(), config)
        return race_models(imported, parse("cpu"), config, path, 0, QUICK)

    return run


@pytest.mark.parametrize(
    ("times", "told", "is_slower"),
    [
        ([[90.0, 100.0], [60.0, 100.0]], (90.0, 100.0), False),
        ([[90.0, 100.0], [105.0, 100.0]], (105.0, 100.0), False),
        ([[103.0, 100.0], [105.0, 100.0]], (105.0, 100.0), True),
        ([[100.5, 100.0], [105.0, 100.0]], (105.0, 100.0), False),
    ],
)
def test_two_processes(race, monkeypatch, times, told, is_slower):
    left = list(times)
    monkeypatch.setattr(whole, "isolated", lambda function, seconds: left.pop(0))
    found = race()
    assert (found.us, found.default_us) == told
    assert found.is_slower is is_slower
    assert found.gain == told[1] / told[0]


def test_measured_for_real(race):
    found = race()
    assert found.error == ""
    assert 0 < found.us < np.inf
    assert 0 < found.default_us < np.inf


def test_a_model_that_crashes_is_told(race, monkeypatch):
    def crash(function, seconds):
        raise Failed("ended by SIGSEGV")

    monkeypatch.setattr(whole, "isolated", crash)
    found = race()
    assert (found.error, found.is_slower) == ("ended by SIGSEGV", False)
