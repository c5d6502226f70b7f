"""Mistakes in pipelines of mbarriers as they are written, which the emulator must find."""

from tvm import tirx

from tvm_fusion.schedule.gpu.memory import mbarrier
from tvm_fusion.schedule.gpu.memory.pipeline import Barriers, Ring, RingPosition


def no_wait_for_empty(monkeypatch):
    monkeypatch.setattr(Ring, "acquire", lambda self: tirx.Evaluate(0))


def a_wrong_parity(monkeypatch):
    wait = Barriers.wait
    monkeypatch.setattr(Barriers, "wait", lambda self, n, parity: wait(self, n, 1 - parity))


def release_of_another_stage(monkeypatch):
    release = Ring.release

    def other(self, lane, stage):
        return release(self, lane, tirx.floormod(stage + 1, self.at.stages))

    monkeypatch.setattr(Ring, "release", other)


def a_stage_less_of(roles):
    """Plant into a class of roles that its producer's ring is one stage shorter."""

    def a_producer_with_a_stage_less(monkeypatch):
        produce, advance = roles.produce, RingPosition.advance

        def advance_sooner(self, count):
            self.stages -= 1
            try:
                return advance(self, count)
            finally:
                self.stages += 1

        def fewer(self, *given):
            with monkeypatch.context() as patched:
                patched.setattr(RingPosition, "advance", advance_sooner)
                return produce(self, *given)

        monkeypatch.setattr(roles, "produce", fewer)

    return a_producer_with_a_stage_less


def too_few_bytes(monkeypatch):
    expect = mbarrier.expect_bytes
    monkeypatch.setattr(mbarrier, "expect_bytes", lambda bar, count: expect(bar, count // 2))
