"""Bisection finds what was planted, whatever it does, and nothing where nothing is wrong."""

import json
import os
import signal

import numpy as np
import planted
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tvm_fusion import DimRange, FusionConfig, UserError
from tvm_fusion.measure.isolate import Failed, isolated
from tvm_fusion.report.bisect import find_broken, find_slow, timing
from tvm_fusion.report.bisect.delta import smallest_failing
from tvm_fusion.report.planned import plan_model

pytestmark = pytest.mark.slow_beyond(2)


@pytest.fixture
def broken(monkeypatch):
    """Bisect the model with a fault in it."""

    def find(fault, **options):
        planted.plant(monkeypatch, fault)
        return find_broken(plan_model(planted.model()), planted.inputs(), **options)

    return find


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (planted.wrong, "error "),
        (planted.raising, "planted claimed this group and could not emit it: ValueError: no such"),
        (planted.aborting, "ended by SIGABRT"),
    ],
)
def test_a_planted_fault_is_found(broken, fault, words):
    lines = []
    found = broken(fault, progress=lines.append)
    assert len(lines) == found.probes - 1  # the reference has nothing to be compared with
    assert lines[0].startswith("3 of 3 groups: failed, ")
    assert words in lines[0]
    assert lines[-1].endswith(", error 0.00e+00")
    assert not found.passed
    assert found.candidates == 3
    (culprit,) = found.culprits
    (group,) = culprit.groups
    assert (group.title, group.template, group.instances) == ("matmul + exp + tanh", "planted", 2)
    assert [m.title for m in group.members] == ["matmul", "exp", "tanh"]
    assert [m.title for m in culprit.smallest] == ["exp", "tanh"]
    variables = {m.variable for m in group.members}
    assert len(group.decisions) == 2
    assert {d.code for d in group.decisions} == {"fused"}
    assert all({d.producer, d.consumer} <= variables for d in group.decisions)
    assert found.fused.fails(found.tolerance)
    assert culprit.alone.crash or culprit.alone.error > 0.1
    assert found.cured.error <= 1e-6
    json.dumps(found.to_json())


def test_a_tolerance_that_forgives(broken):
    assert broken(planted.wrong, tolerance=100.0).passed


@pytest.mark.slow
def test_two_faults_are_two_culprits(monkeypatch):
    planted.plant(monkeypatch, planted.wrong)

    class Other(planted.Planted):
        name = "other"

        def claim(self, group, device):
            claim = planted.Merged().claim(group, device)
            if {"matmul", "relu"} != {op.title for op in group.members}:
                return planted.Refusal("not_mine", "It is no matmul with relu.")
            return planted.Claim(self, claim.group, 1, 0, 0, 64)

    both = (Other(planted.raising), planted.Planted(planted.wrong))
    planted.use(monkeypatch, *both, planted.Merged())
    found = find_broken(plan_model(planted.model()), planted.inputs())
    titles = {culprit.groups[0].title for culprit in found.culprits}
    assert titles == {"matmul + exp + tanh", "matmul + relu"}
    assert found.cured.error <= 1e-6


def test_nothing_is_found_where_nothing_is_wrong(broken):
    found = broken(None)
    assert found.passed
    assert found.culprits == ()
    assert found.fused.error <= 1e-6
    assert found.probes == 2


def test_a_fault_of_single_operators_is_no_merge(monkeypatch):
    class Useless(planted.Merged):
        def emit(self, claim, target):
            raise ValueError("nothing works")

    planted.use(monkeypatch, Useless())
    found = find_broken(plan_model(planted.model()), planted.inputs())
    assert not found.passed
    assert "nothing works" in found.reference_crash


@pytest.mark.slow
def test_the_packages_own_templates_pass():
    assert find_broken(plan_model(planted.model()), planted.inputs()).passed


@pytest.mark.slow
def test_symbolic_dimensions():
    config = FusionConfig(dims={"batch": DimRange(1, 9)})
    planned = plan_model(planted.model("batch"), "cpu", config)
    found = find_broken(planned, planted.inputs(7))
    assert found.passed
    assert found.candidates > 0
    with pytest.raises(UserError, match="1 to 9"):
        find_broken(planned, planted.inputs(10))


def test_a_target_that_is_not_here():
    planned = plan_model(planted.model(), "rocm:gfx942")
    with pytest.raises(UserError, match="cannot be run on this machine"):
        find_broken(planned, planted.inputs())


@pytest.mark.slow
def test_a_slow_group_is_found(monkeypatch):
    planted.plant(monkeypatch, planted.slow)
    config = FusionConfig(dims={"batch": DimRange(1, 512)})
    planned = plan_model(planted.model("batch"), "cpu", config)
    found = find_slow(planned, planted.inputs(64), tolerance=2.0)
    assert not found.passed
    (slowdown,) = found.slow
    assert slowdown.group.title == "matmul + exp + tanh"
    assert slowdown.fused_us > 3 * slowdown.unfused_us
    assert found.times_us["fused"] > 3 * found.times_us["without_slow"]
    assert set(found.times_us) == {"unfused", "fused", "without_slow"}
    json.dumps(found.to_json())


def test_what_only_the_whole_model_shows(monkeypatch):
    """Groups look fast by themselves; in the model two of three cost time."""
    planted.plant(monkeypatch)
    monkeypatch.setattr(timing, "_times", lambda *arguments: (1.0, 2.0))

    def model_us(_planned, _variants, wanted, _inputs):
        def cost(claims):
            return 100.0 + 50 * sum("exp" in claim.group.title for claim in claims)

        return {name: cost(claims) for name, claims in wanted.items()}

    monkeypatch.setattr(timing, "_model_us", model_us)
    found = find_slow(plan_model(planted.model()), planted.inputs())
    (slowdown,) = found.slow
    assert slowdown.group.title == "matmul + exp + tanh"
    assert (slowdown.fused_us, slowdown.unfused_us, slowdown.measured) == (150.0, 100.0, "model")
    assert found.times_us == {"unfused": 100.0, "fused": 200.0, "without_slow": 100.0}


@pytest.mark.slow
def test_no_group_is_slow(monkeypatch):
    planted.plant(monkeypatch)
    found = find_slow(plan_model(planted.model()), planted.inputs(), tolerance=20.0)
    assert found.passed
    assert set(found.times_us) == {"unfused", "fused"}


@given(st.integers(1, 40), st.sets(st.integers(0, 39), min_size=1, max_size=4))
def test_delta_debugging_finds_the_smallest_set(count, guilty):
    guilty = {g % count for g in guilty}
    asked = []

    def fails(part):
        asked.append(tuple(part))
        return guilty <= set(part)

    assert smallest_failing(range(count), fails) == sorted(guilty)
    assert len(asked) == len(set(asked))


def test_delta_debugging_asks_few_questions():
    asked = []

    def fails(part):
        asked.append(part)
        return 77 in part

    assert smallest_failing(range(100), fails) == [77]
    assert len(asked) <= 14


def test_an_isolated_function_gives_its_result():
    array = np.arange(5)
    assert (isolated(lambda: {"x": array * 2})["x"] == array * 2).all()


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGSEGV), "SIGSEGV"),
        (lambda: os._exit(3), "exit code 3"),
        (lambda: 1 / 0, "ZeroDivisionError: division by zero"),
        (lambda: lambda: None, "pickle"),
    ],
)
def test_an_isolated_function_that_fails(function, words):
    with pytest.raises(Failed, match=words):
        isolated(function)
