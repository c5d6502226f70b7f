"""MetaSchedule's search over design spaces: of new members only; told where it cannot be used."""

import importlib.util

import pytest
from test_config_search import SPACE
from tuned_models import smooth

from tvm_fusion.errors import UserError
from tvm_fusion.fusion.database.tuning_records import Trial, text
from tvm_fusion.tuning.search import evolutionary
from tvm_fusion.tuning.search.evolutionary import EvolutionarySearch

NEEDED = ("xgboost", "psutil", "cloudpickle")
is_installed = all(map(importlib.util.find_spec, NEEDED))


def test_packages_that_are_not_installed(monkeypatch):
    monkeypatch.setattr(evolutionary.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"needs xgboost, psutil, cloudpickle; install tvm_fusion"):
        EvolutionarySearch(SPACE, 0)


@pytest.fixture(scope="module")
def spaces():
    return evolutionary._Space(SPACE[10:70:3])


def test_configurations_are_schedules(spaces):
    for config in SPACE[10:70:3]:
        candidate = spaces.candidate(config)
        assert spaces.config(candidate.sch) == config
        assert spaces.has(candidate.sch)
    left_out = [config for config in SPACE if config not in SPACE[10:70:3]]
    inside = [c for c in left_out if c["mr"] in (1, 2, 3) and c["kc"] < 512 and c["nr"] < 64]
    assert inside
    for config in inside[:5]:
        try:
            candidate = spaces.candidate(config)
        except ValueError:  # a value that no member has
            continue
        assert not spaces.has(candidate.sch)


@pytest.mark.slow
@pytest.mark.skipif(not is_installed, reason="needs the extra tune")
def test_members_are_proposed_once_and_good_ones_soon():
    search, proposed = EvolutionarySearch(SPACE, 0), []
    while len(proposed) < 24:
        for config in search.propose(8):
            search.tell(Trial(config, smooth(config), 30.0))
            proposed.append(config)
    assert len(set(map(text, proposed))) == len(proposed)
    assert set(map(text, proposed)) <= set(map(text, SPACE[1:]))
    assert min(map(smooth, proposed)) <= sorted(map(smooth, SPACE))[25]


@pytest.mark.slow
@pytest.mark.skipif(not is_installed, reason="needs the extra tune")
def test_small_spaces_are_exhausted():
    search, proposed = EvolutionarySearch(SPACE[:9], 0), []
    while not search.is_over:
        for config in search.propose(8):
            search.tell(Trial(config, smooth(config), 30.0))
            proposed.append(text(config))
    assert len(set(proposed)) == len(proposed) <= 8
