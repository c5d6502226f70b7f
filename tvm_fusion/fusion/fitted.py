"""Coefficients of the cost model, fitted to measured kernels of several devices.

``coefficients.json`` has, for each device, the microseconds of each feature by template (under the
empty name: of all templates together), what they were fitted to, and how far they are off.
``python -m benchmarks.cost_model`` makes it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from ..device import Device
from .features import NAMES, features_of

if TYPE_CHECKING:
    from ..core.template import Claim

FILE = "coefficients.json"


@dataclass(frozen=True)
class Fit:
    """What was fitted for one device.

    Attributes
    ----------
    coefficients : mapping of str to sequence of float
        Microseconds of each of :data:`~.features.NAMES`, by template.
    dtypes : frozenset of str
        Floating types of the kernels that were measured.
    provenance : Mapping
        Device, date, what was measured, errors.
    """

    coefficients: Mapping[str, Sequence[float]]
    dtypes: frozenset[str]
    provenance: Mapping[str, Any]

    def us(self, claim: Claim, cache_bytes: int) -> float | None:
        """Tell what a claim's kernels take; ``None`` for types that were not measured."""
        tensors = (*claim.group.inputs, *claim.group.outputs)
        floats = {v.dtype for v in tensors if v.dtype.startswith(("float", "bfloat"))}
        if not floats <= self.dtypes:
            return None
        own = self.coefficients.get(claim.template.name, self.coefficients[""])
        row = features_of(claim, cache_bytes).row
        return sum(c * x for c, x in zip(own, row, strict=True))


@lru_cache(maxsize=1)
def fits() -> Mapping[tuple[str, str, str], Fit]:
    """Read what ships with the package, by kind, architecture and name of the device."""
    data = json.loads(files(__package__).joinpath(FILE).read_text())
    if tuple(data["features"]) != NAMES:
        raise RuntimeError(f"{FILE} has other features than the model")
    return {
        (one["kind"], one["arch"], one["name"]): Fit(
            one["coefficients"], frozenset(one["dtypes"]), one["provenance"]
        )
        for one in data["devices"]
    }


def fit_of(device: Device) -> Fit | None:
    """Give the coefficients of a device; ``None`` where it was not measured.

    Of GPUs those of any board of the architecture will do: provenance names the board.
    """
    known = fits()
    return known.get((device.kind, device.arch, device.name)) or known.get(
        (device.kind, device.arch, "")
    )
