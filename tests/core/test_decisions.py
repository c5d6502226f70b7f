"""The log of decisions."""

import contextvars

from tvm_fusion.core.decisions import Decision, record, recording

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
