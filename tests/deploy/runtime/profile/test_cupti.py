"""CUPTI's records of kernels, joined with the calls that launched them."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from tvm_fusion.deploy.runtime.profile.bench import Recorder, Unusable, _calls


def kernels(*spans):
    return [(f"{name}_kernel{part}", start, end) for name, part, start, end in spans]


def test_kernels_of_a_call_add_up():
    found = list(
        _calls(
            kernels(
                ("a", "", 1000, 3000), ("a", "_1", 3500, 4000), ("b", "", 5000, 6000),
                ("a", "", 7000, 8000), ("a", "_1", 8000, 9500),
            ),
            ["a", "b", "a"],
            500,
        )
    )  # fmt: skip
    assert [(c.name, c.start_us, c.us) for c in found] == [
        ("a", 0.5, 2.5),
        ("b", 4.5, 1.0),
        ("a", 6.5, 2.5),
    ]


def test_kernels_that_overlap_count_once():
    found = list(
        _calls(
            kernels(("b", "", 1500, 2500), ("a", "", 1000, 2000), ("c", "", 2100, 2400)),
            ["a", "b", "c"],
            1000,
        )
    )
    assert [(c.name, c.start_us, c.us) for c in found] == [
        ("a", 0.0, 1.0),
        ("b", 0.5, 0.5),
        ("c", 1.1, 0.0),
    ]


@pytest.mark.parametrize("recorded", [kernels(), kernels(*[("a", "", 0, 1)] * 3)])
def test_records_that_fit_no_calls(recorded):
    with pytest.raises(Unusable, match=rf"{len(recorded)} kernels in 2 calls of a"):
        list(_calls(recorded, ["a", "a"], 0))


def fake_cupti(monkeypatch, **functions):
    """A module that records the kernels of `launched` while it is enabled."""
    launched, state = [], SimpleNamespace(on=False, completed=None, now=0)

    def register(requested, completed):
        assert requested()[0] > 0
        state.completed = completed

    def flush(_flag):
        state.completed([SimpleNamespace(name=n, start=s, end=e) for n, s, e in launched])

    def clock():
        state.now += 1000
        return state.now

    api = {
        "ActivityKind": SimpleNamespace(CONCURRENT_KERNEL=10),
        "activity_register_callbacks": register,
        "activity_enable": lambda kind: setattr(state, "on", kind),
        "activity_disable": lambda kind: setattr(state, "on", False),
        "activity_flush_all": flush,
        "get_timestamp": clock,
        **functions,
    }
    package, module = ModuleType("cupti"), ModuleType("cupti.cupti")
    vars(module).update(api)
    package.cupti = module
    monkeypatch.setitem(sys.modules, "cupti", package)
    return launched, state


def test_records_while_it_runs_only(monkeypatch):
    launched, state = fake_cupti(monkeypatch)
    recorder = Recorder("cuda")
    for start in (1500, 3500):
        launched[:] = kernels(("a", "", start, start + 250))
        run = recorder.timed(lambda: state.on == 10 or pytest.fail("off"), ["a"])
        assert [(c.name, c.start_us, c.us) for c in run.calls] == [("a", 0.5, 0.25)]
        assert run.us == 1.0
        assert state.on is False


def test_why_it_cannot(monkeypatch):
    def refuse(*_):
        raise RuntimeError("CUPTI_ERROR_INSUFFICIENT_PRIVILEGES\nmore")

    fake_cupti(monkeypatch, activity_enable=refuse)
    recorder = Recorder("cuda")
    with pytest.raises(Unusable, match="activity_enable failed: CUPTI_ERROR_INSUFFICIENT_PRIV"):
        recorder.timed(lambda: None, ["a"])
    monkeypatch.setitem(sys.modules, "cupti", None)
    with pytest.raises(Unusable, match="cupti-python does not load"):
        Recorder("cuda")
