"""Stages tell how far they are, to whoever listens."""

import contextvars
import re

import pytest
from tiny_models import dense

import tvm_fusion
from tvm_fusion.core.progress import Stage, listening, report, silent, steps


def test_nobody_need_listen():
    report("alone")
    assert list(steps("alone", iter("ab"))) == ["a", "b"]


def test_steps_are_told_and_what_is_inside_of_them_is_not():
    told = []
    with listening(told.append):
        report("first")
        for item in steps("outer", "ab"):
            report("inside")
            assert list(steps("inner", item * 2)) == [item, item]
        report("last")
        with silent():
            report("silent")
    report("behind")
    assert told == [Stage("first"), Stage("outer", 0, 2), Stage("outer", 1, 2), Stage("last")]


def test_steps_that_fail_end_the_stage():
    told = []

    def fail():
        for _ in steps("failing", "a"):
            raise ValueError("broken")

    with listening(told.append):
        with pytest.raises(ValueError, match="broken"):
            fail()
        report("after")
    assert told[-1] == Stage("after")


def test_a_compilation_tells_its_stages():
    told = []
    with listening(told.append):
        tvm_fusion.compile(dense(), dims={"batch": 2})
    rewriting = [stage.name for stage in told if stage.name.startswith("rewriting, step")]
    of_all = re.fullmatch(r"rewriting, step 1 of (\d+) \(byte products\)", rewriting[0])
    assert len(dict.fromkeys(rewriting)) == int(of_all[1])
    names = list(dict.fromkeys(stage.name.partition(",")[0] for stage in told))
    assert names == [
        "starting the compiler", "importing", "rewriting", "classifying operators",
        "fusing operators", "choosing layouts", "scheduling kernels", "planning memory",
        "generating machine code",
    ]  # fmt: skip
    fused = [stage for stage in told if stage.name == "fusing operators" and stage.total]
    assert [stage.done for stage in fused] == list(range(fused[0].total))
    assert fused[0].total >= 3


def test_other_threads_contexts_tell_nothing():
    told = []
    with listening(told.append):
        contextvars.Context().run(report, "elsewhere")
    assert told == []
