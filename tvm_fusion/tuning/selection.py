"""Which winners make the whole model faster: added to it in races of the whole model.

  chosen = the default of every task;  winners, those that gain most first
  add(all winners)
  add(some):
      race the model of chosen and some against that of chosen, in turns
      it gains half of what they gain alone, or more:  chosen += some
      else:  add(one half of them), add(the other half)

A configuration that is faster alone can be slower in the model, where caches hold other things. Of
many at once the sum is seen that no race could see of one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ..core.contract.template import Config
from ..fusion.database.key import Key
from ..measure.isolate import Failed
from .whole import DEFAULTS, Chosen

EXPECTED = 0.5  # of the gain that winners have alone


@dataclass(frozen=True)
class Winner:
    """A configuration that is faster than its task's default, measured alone."""

    key: Key  # of the task
    config: Config  # the configuration
    gain_us: float  # microseconds that all calls of a run are faster


class Model(Protocol):
    """What races choices; see :class:`.whole.WholeModel`."""

    def race(self, one: Chosen, other: Chosen) -> tuple[float, float]:
        """Time two choices; microseconds of each."""


class Selection:
    """The winners that are used.

    Parameters
    ----------
    has_time
        Whether there is time for another race.

    Attributes
    ----------
    chosen : dict of Key to Config
        What makes the model faster.
    gain : float
        How many times faster, by the races.
    """

    def __init__(self, model: Model, has_time: Callable[[], bool]) -> None:
        self._model, self._has_time = model, has_time
        self.chosen: dict[Key, Config] = dict(DEFAULTS)
        self.gain = 1.0

    def run(self, winners: Sequence[Winner]) -> None:
        """Choose among the winners."""
        ordered = sorted(winners, key=lambda one: -one.gain_us)
        together = self._add(ordered)
        if together > self.gain:  # parts of them were not tried, or gained less
            self.chosen, self.gain = _configs(ordered), together

    def _add(self, some: Sequence[Winner]) -> float:
        """Add those that gain what is expected of them; returns the gain of all at once."""
        if not some or not self._has_time():
            return 0.0
        try:
            us, before = self._model.race({**self.chosen, **_configs(some)}, self.chosen)
        except Failed:  # one of them
            us = before = 1.0
        together = self.gain * before / us
        if us < before and before - us >= EXPECTED * sum(one.gain_us for one in some):
            self.chosen |= _configs(some)
            self.gain = together
        elif len(some) > 1:
            self._add(some[: len(some) // 2])
            self._add(some[len(some) // 2 :])
        return together


def _configs(winners: Sequence[Winner]) -> dict[Key, Config]:
    return {one.key: one.config for one in winners}
