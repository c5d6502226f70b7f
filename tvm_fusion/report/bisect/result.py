"""What a bisection finds, as data."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from ...core.decisions import Decision
from ..explain import Member


@dataclass(frozen=True)
class Outcome:
    """How one variant of the model did against the unfused one.

    Attributes
    ----------
    crash
        What it died of while it was compiled or run; empty if it ran.
    error
        The worst output's max|a-b|/max|b|; None if it did not run.
    outputs
        The same by output.
    """

    crash: str = ""
    error: float | None = None
    outputs: dict[str, float] | None = None

    def fails(self, tolerance: float) -> bool:
        """Whether it crashed or is off by more than the tolerance."""
        return self.error is None or not self.error <= tolerance


@dataclass(frozen=True)
class FusedGroup:
    """A group of several operators.

    Attributes
    ----------
    title
        Such as ``matmul + add + gelu``.
    template
        Who makes its kernels.
    members
        In order.
    instances
        How many groups of the model are equal to it, itself included.
    decisions
        The planner's verdicts on the edges inside of it.
    """

    title: str
    template: str
    members: tuple[Member, ...]
    instances: int
    decisions: tuple[Decision, ...]


@dataclass(frozen=True)
class Culprit:
    """Groups that make the model fail when they, and no others, are fused.

    Attributes
    ----------
    groups
        One as a rule; several if only their combination fails.
    alone
        Of the model with these groups fused and nothing else.
    smallest
        The smallest part of a single group that fails when fused by the same template.
    """

    groups: tuple[FusedGroup, ...]
    alone: Outcome
    smallest: tuple[Member, ...]


@dataclass(frozen=True)
class Slowdown:
    """A group that takes longer than its operators one by one.

    Attributes
    ----------
    group
        The group.
    fused_us, unfused_us
        Microseconds with the group fused and with its operators in kernels of their own.
    measured : {"group", "model"}
        Whether these are of one instance by itself, or of the whole model, nothing else fused.
    """

    group: FusedGroup
    fused_us: float
    unfused_us: float
    measured: Literal["group", "model"] = "group"


@dataclass(frozen=True)
class Bisection:
    """What was found.

    Attributes
    ----------
    model, target
        What was compiled, and what for.
    tolerance
        On errors; for slow groups on the time that fusion may cost, over that of the parts.
    candidates
        Groups of several operators.
    probes
        Variants that were compiled and run.
    reference_crash
        What the unfused model died of, if it did: then no merge is at fault.
    fused
        Of the model as planned; None where times were compared.
    culprits
        Groups that break it, those found first in front.
    cured
        Of the model without all culprits and groups equal to them; None if there are none.
    slow
        Groups that slow it, the one that costs most in front.
    times_us
        Microseconds of the whole model: ``unfused``, ``fused``, and if there are slow groups
        ``without_slow``. Empty where errors were compared.
    """

    model: str
    target: str
    tolerance: float
    candidates: int
    probes: int
    reference_crash: str = ""
    fused: Outcome | None = None
    culprits: tuple[Culprit, ...] = ()
    cured: Outcome | None = None
    slow: tuple[Slowdown, ...] = ()
    times_us: dict[str, float] | None = None

    @property
    def passed(self) -> bool:
        """Whether nothing is wrong with the model as planned."""
        return not (self.reference_crash or self.culprits or self.slow)

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain values: the attributes by name, and ``passed``."""
        return {"passed": self.passed, **asdict(self)}
