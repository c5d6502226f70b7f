"""How long tuning goes on: seconds, or trials."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field, replace

from ..errors import UserError

LEAST = 1.0  # seconds: building and measuring one candidate takes a few tenths
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_FORM = "a time such as 90s, 30m or 2h, or trials=2000"


@dataclass
class Budget:
    """What may be spent."""

    seconds: float | None  # from the start of this run
    trials: int | None  # of all runs of the same model: a run that was interrupted is continued
    _start: float = field(default_factory=time.monotonic)

    @classmethod
    def parse(cls, text: str) -> Budget:
        """Read ``30m`` or ``trials=2000``.

        Raises
        ------
        UserError
            For any other form, for nothing at all, and for less than one trial takes.
        """
        if not isinstance(text, str):
            raise UserError(f"budget {text!r}", _FORM)
        count = re.fullmatch(r"trials=([0-9]{1,9})", text.strip())
        span = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([smh])", text.strip())
        if count:
            if not int(count[1]):
                raise UserError(f"budget {text!r} allows no trial", _FORM)
            return cls(None, int(count[1]))
        if not span:
            raise UserError(f"budget {text!r}", _FORM)
        seconds = float(span[1]) * _SECONDS[span[2]]
        if seconds < LEAST:
            least = f"at least {LEAST:g} s, since a trial takes some tenths of one"
            raise UserError(f"budget {text!r} is shorter than one trial", least)
        return cls(seconds, None)

    def without(self, seconds: float) -> Budget:
        """Return the budget less so many seconds; a budget of trials stays as it is."""
        return self if self.seconds is None else replace(self, seconds=self.seconds - seconds)

    def is_spent(self, trials: int) -> bool:
        """Whether it is used up after a number of trials."""
        if self.trials is not None:
            return trials >= self.trials
        return self.left(trials) <= 0

    def left(self, trials: int) -> float:
        """Tell what is left: seconds, or trials."""
        if self.trials is not None:
            return max(0, self.trials - trials)
        return max(0.0, (self.seconds or 0.0) - (time.monotonic() - self._start))

    def describe(self, trials: int) -> str:
        """Say what is left, in a few words."""
        left = self.left(trials)
        if self.trials is not None:
            return f"{left:.0f} trials left"
        return f"{int(left) // 60}:{int(left) % 60:02d} left"
