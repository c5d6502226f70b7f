"""Mistakes in pipelines of mbarriers as they are written, which the emulator must find."""

from tvm import tirx

from tvm_fusion.schedule.gpu import mbarrier


def no_wait_for_empty(monkeypatch):
    wait, is_first = mbarrier.wait, [True]

    def unless_first(bar, parity):
        if is_first:  # of the producer, whose code is written first
            is_first.clear()
            return tirx.Evaluate(0)
        return wait(bar, parity)

    monkeypatch.setattr(mbarrier, "wait", unless_first)


def too_few_bytes(monkeypatch):
    expect = mbarrier.expect_bytes
    monkeypatch.setattr(mbarrier, "expect_bytes", lambda bar, count: expect(bar, count // 2))
