"""Record changes of the rewriting stage as data, for explanations and tests."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ...fusion.estimate import RegionCost
from ...words import few
from .saturate import Use


@dataclass(frozen=True)
class Gain:
    """What a change saves by the planner's estimate of its region; negative: costs."""

    us: float  # microseconds
    # Launches, memory traffic, operations.
    kernels: int
    bytes: int
    flops: int

    @classmethod
    def between(cls, before: RegionCost, after: RegionCost) -> Gain:
        """Return what the second of two costs saves."""
        return cls(
            before.us - after.us,
            before.kernels - after.kernels,
            before.bytes - after.bytes,
            before.flops - after.flops,
        )


@dataclass(frozen=True)
class Change:
    """An expression that another one took the place of."""

    # Where: what was bound to the variable is computed in another way now. Empty where the rule
    # does not say.
    function: str
    variable: str
    # Names of the rules that made it; empty where equal operators or constants were merged.
    rules: tuple[str, ...]
    # The parts that differ. Small letters are tensors, capitals constants.
    before: str
    after: str
    gain: Gain | None = None  # none where no planner was asked
    # Whether these rules were seen to make the change alone, and none of them can be spared. If
    # not, the rules are those that wrote the new expression's operators.
    is_replayed: bool = True
    names: tuple[str, ...] = ()  # the user's names of what was bound to the variable

    @property
    def label(self) -> str:
        """What to call it in a line: by the user's names where there are any."""
        return few(self.names) or self.variable


@dataclass
class Rewrites:
    """What rewriting did while it was recorded."""

    changes: list[Change] = field(default_factory=list)  # in the order of the stage's passes
    # Statistics by the rule's name. Equal regions are searched once, and counted once in all but
    # ``chosen`` and ``gain_us``.
    uses: dict[str, Use] = field(default_factory=dict)


_log: contextvars.ContextVar[Rewrites | None] = contextvars.ContextVar("rewrites", default=None)


def is_noting() -> bool:
    """Whether changes are recorded."""
    return _log.get() is not None


def note(change: Change) -> None:
    """Append a change to the log of the innermost :func:`noting`, if there is one."""
    log = _log.get()
    if log is None:
        return
    log.changes.append(change)
    for name in change.rules:
        use = log.uses.setdefault(name, Use())
        use.chosen += 1
        use.gain_us += change.gain.us / len(change.rules) if change.gain is not None else 0.0


def note_uses(uses: Mapping[str, Use]) -> None:
    """Add what a search counted; what was chosen is known from the changes."""
    log = _log.get()
    if log is None:
        return
    for name, more in uses.items():
        use = log.uses.setdefault(name, Use())
        use.tried += more.tried
        use.fired += more.fired
        use.refused.update(more.refused)


def note_all(found: Rewrites) -> None:
    """Add what an inner :func:`noting` collected."""
    for change in found.changes:
        note(change)
    note_uses(found.uses)


@contextlib.contextmanager
def noting() -> Iterator[Rewrites]:
    """Collect what is rewritten inside the ``with`` block; yields the growing record."""
    log = Rewrites()
    token = _log.set(log)
    try:
        yield log
    finally:
        _log.reset(token)
