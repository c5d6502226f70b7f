"""What is checked on a GPU: a lowered module, its arguments, and what it must return."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tvm

from .drawing import checksum, draw
from .expected import store

_MASKED = 1e30  # what is larger stands for infinity, as in masks, and says nothing of the others


@dataclass(eq=False)
class Entry:
    """One function."""

    name: str  # unique; tells where it comes from
    kind: str  # which summary line it belongs to
    mod: tvm.IRModule  # lowered for the virtual machine; the function is ``main``
    arguments: Sequence[dict[str, Any] | int]  # see :func:`~.drawing.tensor`
    seed: int  # of the arguments
    outputs: list[dict[str, Any]]  # see :func:`~.expected.store`
    launches: int  # device kernels counted in the module, copies and library calls left out
    reference: str  # ``float64`` or ``unfused``: where the expected results come from
    groups: int = 0  # how many of the distinct groups looked for it holds
    # What else is worth reading in a report: members, templates, extents.
    about: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return all but the module as data for :func:`~.archive.write`."""
        return {
            "name": self.name,
            "kind": self.kind,
            "arguments": self.arguments,
            "seed": self.seed,
            "checksum": checksum(draw(self.arguments, self.seed)),
            "outputs": self.outputs,
            "launches": self.launches,
            "reference": self.reference,
            "groups": self.groups,
            "about": self.about,
        }


@dataclass(frozen=True)
class LeftOut:
    """Something that should have become an entry and did not."""

    # As of an entry.
    name: str
    kind: str
    stage: str  # ``plan``, ``limit``, ``reference`` or ``compile``
    reason: str  # one line

    @classmethod
    def because(cls, name: str, kind: str, stage: str, error: Exception) -> LeftOut:
        """Take the reason from an exception."""
        return cls(name, kind, stage, reason(error))


def reason(error: Exception) -> str:
    """Return the line of an exception that says most."""
    lines = [line for line in str(error).strip().splitlines() if line.strip()] or [""]
    useful = [line for line in lines if "Error" in line or "Check failed" in line] or lines
    return f"{type(error).__name__}: {useful[-1].strip()[:300]}"


def relative(exact: Sequence[np.ndarray], dtypes: Sequence[str], tolerance: float) -> list[dict]:
    """Store outputs whose errors are measured in parts of their largest magnitude.

    Integers and booleans must be exact.
    """
    stored = []
    for array, dtype in zip(exact, dtypes, strict=True):
        sizes = np.abs(array.astype("float64"))
        usual = sizes[sizes < _MASKED]
        scale = float(usual.max(initial=0)) if array.dtype.kind == "f" else 0.0
        stored.append(store(array, dtype, tolerance * scale))
    return stored
