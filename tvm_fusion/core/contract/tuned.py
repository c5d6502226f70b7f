"""Configurations that a tuner has measured, as the scheduling stage asks for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...device import Device
    from .template import Claim, Config, Refusal

TUNED = "tuned"  # code of the decision that a group's kernels have a measured configuration


@dataclass(frozen=True)
class Tuned:
    """A configuration that was measured to be faster than the default."""

    config: Config  # for :meth:`tvm_fusion.core.contract.template.Template.configure`
    # Microseconds of the kernels with it and with the default, measured in turns.
    us: float
    default_us: float
    source: str  # the record: file, number, date
    # How the record's device or versions differ from those compiled for; empty if they do not.
    note: str = ""

    @property
    def gain(self) -> float:
        """How many times faster than the default."""
        return self.default_us / self.us


#: What was measured for a claim; why a record of it does not fit; ``None`` where there is none.
Lookup = Callable[["Claim", "Device"], "Tuned | Refusal | None"]


def untuned(claim: Claim, device: Device) -> Tuned | None:
    """Keep all defaults."""
    return None
