"""What a bisection finds, as data."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

from ...core.decisions import Decision
from ..explain import Member


@dataclass(frozen=True)
class Outcome:
    """How one variant of the model did against the unfused one."""

    crash: str = ""  # what it died of while it was compiled or run; empty if it ran
    error: float | None = None  # the worst output's max|a-b|/max|b|; None if it did not run
    outputs: dict[str, float] | None = None  # the same by output

    def fails(self, tolerance: float) -> bool:
        """Whether it crashed or is off by more than the tolerance."""
        return self.error is None or not self.error <= tolerance


@dataclass(frozen=True)
class FusedGroup:
    """A group of several operators."""

    title: str  # such as ``matmul + add + gelu``
    template: str  # who makes its kernels
    members: tuple[Member, ...]  # in order
    instances: int  # how many groups of the model are equal to it, itself included
    decisions: tuple[Decision, ...]  # the planner's verdicts on the edges inside of it


@dataclass(frozen=True)
class Culprit:
    """Groups that make the model fail when they, and no others, are fused."""

    groups: tuple[FusedGroup, ...]  # one as a rule; several if only their combination fails
    alone: Outcome  # of the model with these groups fused and nothing else
    # The smallest part of a single group that fails when fused by the same template.
    smallest: tuple[Member, ...]


@dataclass(frozen=True)
class Slowdown:
    """A group that takes longer than its operators one by one."""

    group: FusedGroup  # the group
    # Microseconds with the group fused and with its operators in kernels of their own.
    fused_us: float
    unfused_us: float
    # Whether these are of one instance by itself, or of the whole model, nothing else fused.
    measured: Literal["group", "model"] = "group"


@dataclass(frozen=True)
class Bisection:
    """What was found."""

    # What was compiled, and what for.
    model: str
    target: str
    # On errors; for slow groups on the time that fusion may cost, over that of the parts.
    tolerance: float
    candidates: int  # groups of several operators
    probes: int  # variants that were compiled and run
    # What the unfused model died of, if it did: then no merge is at fault.
    reference_crash: str = ""
    fused: Outcome | None = None  # of the model as planned; None where times were compared
    culprits: tuple[Culprit, ...] = ()  # groups that break it, those found first in front
    # Of the model without all culprits and groups equal to them; None if there are none.
    cured: Outcome | None = None
    slow: tuple[Slowdown, ...] = ()  # groups that slow it, the one that costs most in front
    # Microseconds of the whole model: ``unfused``, ``fused``, and if there are slow groups
    # ``without_slow``. Empty where errors were compared.
    times_us: dict[str, float] | None = None

    @property
    def passed(self) -> bool:
        """Whether nothing is wrong with the model as planned."""
        return not (self.reference_crash or self.culprits or self.slow)

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain values: the attributes by name, and ``passed``."""
        return {"passed": self.passed, **asdict(self)}
