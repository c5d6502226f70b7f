"""What the profile database answers while a model is planned, beside the roofline's answers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

from tvm_fusion.fusion.claims import NOISE, ClaimBook
from tvm_fusion.fusion.profile import Alternative, Profile
from tvm_fusion.layout import choose as layouts
from tvm_fusion.report.explain.run import count_scheduled
from tvm_fusion.report.planned import PlannedModel


@dataclass(frozen=True)
class Answer:
    """One question: the first alternative is fused (or computes again), the second is not.

    Of layouts the first is what the model chose, the second the same in another layout.
    """

    title: str  # its operators
    # Microseconds of both alternatives.
    measured: tuple[float, ...]
    modelled: tuple[float, ...]
    alternatives: tuple[Alternative, ...]  # what to measure again
    is_layout: bool = False  # whether it is about layouts

    @property
    def is_changed(self) -> bool:
        """Whether the measurement decided otherwise than the model."""
        fused, other = self.measured
        is_tie = abs(fused - other) <= NOISE * other
        return not is_tie and self.fuses(self.measured, 0.0) != self.fuses(self.modelled, 1e-9)

    def row(self) -> dict[str, Any]:
        """Write the answer down."""
        return {
            "title": self.title[:100],
            **({"layout": True} if self.is_layout else {}),
            "measured_us": [round(us, 1) for us in self.measured],
            "modelled_us": [round(us, 1) for us in self.modelled],
        }

    @staticmethod
    def fuses(us: tuple[float, ...], noise: float) -> bool:
        """Whether times speak for the first alternative."""
        return us[0] <= us[1] * (1 + noise)


def kernels(plan: PlannedModel) -> int:
    """Choose a planned model's layouts, and count its launches."""
    return count_scheduled(plan, plan.scheduled(plan.plans)).kernels


@contextmanager
def answers() -> Iterator[list[Answer]]:
    """Collect, inside of ``with``, what is asked and answered, each question once."""
    found: dict[tuple[float, ...], Answer] = {}
    compare, ask = ClaimBook.compare, Profile.ask
    alternatives, comparison = layouts.alternatives, layouts.comparison
    asked: list[Any] = []
    ways: list[Any] = []

    def noted(self: Profile, alternatives: Any, device: Any) -> Any:
        answer = ask(self, alternatives, device)
        asked.append(alternatives)
        return answer

    def compared(self: ClaimBook, *alternatives: Any, may_measure: bool = True) -> Any:
        asked.clear()
        estimates = compare(self, *alternatives, may_measure=may_measure)
        if asked and estimates[0].source == "measured":
            title = " + ".join(part.group.title for part in asked[0][0])
            measured = tuple(e.us for e in estimates)
            modelled = tuple(e.us for e in self.cost.compare(*alternatives))
            found.setdefault(measured, Answer(title, measured, modelled, tuple(asked[0])))
        return estimates

    def laid_out(*choices: Any) -> Any:
        ways[:] = alternatives(*choices) or ()
        return tuple(ways) or None

    def told(call: Any, names: Any, estimates: Any, is_less: bool) -> Any:
        if estimates[0].source == "measured":
            title = f"{names[1]}, not {names[0]}: {call.group.title}"
            measured, modelled = tuple(e.us for e in estimates), tuple(way.us for way in ways)
            parts = tuple(way.parts for way in ways)
            found.setdefault(measured, Answer(title, measured, modelled, parts, True))
        return comparison(call, names, estimates, is_less)

    listed: list[Answer] = []
    with (
        mock.patch.object(layouts, "alternatives", laid_out),
        mock.patch.object(layouts, "comparison", told),
        mock.patch.object(ClaimBook, "compare", compared),
        mock.patch.object(Profile, "ask", noted),
    ):
        yield listed
    listed.extend(found.values())
