"""The fuzzer of files: mutations change, verdicts tell what happened, a few models pass."""

import os
import random
import signal

import pytest
import tiny_models

from tvm_fusion.errors import UserError

from .files.mutate import damaged, mutated
from .files.server import Server
from .files.subjects import compile_model


def subject(case):
    """Do as the case says."""
    if case == b"crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if case == b"raise":
        raise KeyError("x")
    if case == b"refuse":
        raise UserError("no")
    if case == b"loop":
        while True:
            pass


@pytest.mark.parametrize(
    ("case", "outcome", "is_finding"),
    [
        (b"pass", "passed", False),
        (b"refuse", "refused", False),
        (b"crash", "crash SIGSEGV", True),
        (b"raise", "KeyError in ", True),
        pytest.param(b"loop", "hang", True, marks=pytest.mark.slow),
    ],
)
def test_verdicts(monkeypatch, case, outcome, is_finding):
    # A crash takes its time as well, and so may everything where many processes want the cores.
    monkeypatch.setattr("tests.fuzz.files.server.SECONDS", 0.5 if case == b"loop" else 1000)
    server = Server(subject, UserError, __file__)
    try:
        for one in (case, b"pass", case):  # a fresh worker follows one that ended
            verdict = server.judge(one)
        assert verdict.outcome.startswith(outcome)
        assert verdict.is_finding == is_finding
        assert server.known
    finally:
        server.close()


def test_mutations_change_a_copy():
    model, generator = tiny_models.dense(), random.Random(0)
    before = model.SerializeToString()
    others = {mutated(model, [model], generator).SerializeToString() for _ in range(100)}
    assert len(others - {before}) > 50
    assert model.SerializeToString() == before
    assert len({damaged(before, generator) for _ in range(50)}) > 40


@pytest.mark.slow
def test_some_mutated_models(monkeypatch):
    monkeypatch.setattr("tests.fuzz.files.server.SECONDS", 1000)
    model, generator = tiny_models.dense(), random.Random(1)
    server = Server(compile_model, UserError, "tvm_fusion/frontend")
    try:
        for _ in range(60):
            verdict = server.judge(b"\0" + mutated(model, [model], generator).SerializeToString())
            assert not verdict.is_finding, verdict
    finally:
        server.close()
