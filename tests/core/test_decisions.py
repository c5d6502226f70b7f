"""The log of decisions."""

import contextvars

import pytest

from tvm_fusion.core.decisions import Decision, naming, record, recording

FIRST = Decision("a", "b", "refused", "too_big", "Too big.")
SECOND = Decision("c", "", "accepted", "scheduled", "Scheduled.")


def test_recording_collects_in_order():
    with recording() as log:
        record(FIRST)
        record(SECOND)
    assert log == [FIRST, SECOND]


def test_without_a_listener_nothing_is_kept():
    record(FIRST)
    with recording() as log:
        pass
    record(SECOND)
    assert log == []


def test_the_innermost_listener_hears():
    with recording() as outer:
        record(FIRST)
        with recording() as inner:
            record(SECOND)
    assert (outer, inner) == ([FIRST], [SECOND])


def test_another_context_has_its_own_log():
    with recording() as log:
        contextvars.Context().run(record, FIRST)
    assert log == []


def test_decisions_about_functions_are_named():
    with recording() as log, naming({"fused_conv2d": ("/layer1/Conv", "/layer2/Conv")}):
        record(Decision("fused_conv2d", "", "fallback", "unscheduled", "Plain loops."))
        record(Decision("other", "", "fallback", "unscheduled", "Plain loops."))
        record(Decision("fused_conv2d", "b", "refused", "c", "S.", producer_names=("own",)))
    assert [d.producer_label for d in log] == ["/layer1/Conv, /layer2/Conv", "other", "own"]
    assert [d.consumer_label for d in log] == ["", "", "b"]


def test_decisions_before_an_error_are_kept():
    def fail():
        with naming({"a": ("/Exp",)}):
            record(FIRST)
            raise ValueError("nothing works")

    with recording() as log, pytest.raises(ValueError, match="nothing works"):
        fail()
    assert [d.producer_label for d in log] == ["/Exp"]
