"""What the profile database answers while a model is planned, beside the roofline's answers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

from tvm_fusion.fusion.claims import NOISE, ClaimBook
from tvm_fusion.fusion.profile import Alternative, Profile


@dataclass(frozen=True)
class Answer:
    """One question: the first alternative is fused (or computes again), the second is not.

    Attributes
    ----------
    title : str
        Its operators.
    measured, modelled : tuple of float
        Microseconds of both alternatives.
    alternatives : tuple
        What to measure again.
    """

    title: str
    measured: tuple[float, ...]
    modelled: tuple[float, ...]
    alternatives: tuple[Alternative, ...]

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
            "measured_us": [round(us, 1) for us in self.measured],
            "modelled_us": [round(us, 1) for us in self.modelled],
        }

    @staticmethod
    def fuses(us: tuple[float, ...], noise: float) -> bool:
        """Whether times speak for the first alternative."""
        return us[0] <= us[1] * (1 + noise)


@contextmanager
def answers() -> Iterator[list[Answer]]:
    """Collect, inside of ``with``, what is asked and answered, each question once."""
    found: dict[tuple[float, ...], Answer] = {}
    compare, ask = ClaimBook.compare, Profile.ask
    asked: list[Any] = []

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

    listed: list[Answer] = []
    with (
        mock.patch.object(ClaimBook, "compare", compared),
        mock.patch.object(Profile, "ask", noted),
    ):
        yield listed
    listed.extend(found.values())
