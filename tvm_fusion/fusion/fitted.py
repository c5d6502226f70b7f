"""Coefficients of the cost model, fitted to kernels of several devices, most of them measured.

``coefficients.json`` has, for each device, the microseconds of each feature by template (under the
empty name: of all templates together), what they were fitted to, and how far they are off. Claims
whose kernels have a model of their own, in clocks, have coefficients of their own. For AMD GPUs no
device was there: times are those of a model of their machine code, counted in an interpreter
(``benchmarks/amd_clocks``). ``python -m benchmarks.cost_model`` makes the file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Literal

from ..device import Device, measured_as
from .features import NAMES, features_of, is_contraction

if TYPE_CHECKING:
    from ..core.contract.template import Claim

FILE = "coefficients.json"
MOST_APART = 2  # times the threads that were measured
MODELLED = ", modelled"  # behind a template's name: see kind_of
# What a reader calls the features.
TERMS: Mapping[str, str] = {
    "launches": "launches",
    **dict.fromkeys(("weight_kib", "cached_kib", "other_kib", "unit_kib"), "traffic"),
    **dict.fromkeys(("matrix_mflop", "vector_mflop"), "arithmetic"),
    "kiloclocks": "tiles of the product",
    **dict.fromkeys(("element_loads", "thread_loads"), "elements loaded one by one"),
    "element_stores": "elements stored one by one",
    "operand_operations": "operands computed as they are loaded",
}


@dataclass(frozen=True)
class Fit:
    """What was fitted for one device."""

    # Microseconds of each of :data:`~.features.NAMES`, by :func:`kind_of`.
    coefficients: Mapping[str, Sequence[float]]
    # Floating types of the kernels that were measured, and of what their contractions multiply.
    dtypes: frozenset[str]
    products: frozenset[str]
    provenance: Mapping[str, Any]  # device, date, what was measured, errors
    threads: int = 1  # of a CPU, that shared the kernels' work

    @property
    def source(self) -> Literal["fitted", "counted"]:
        """Whether kernels were measured, or counted in an interpreter of their machine code."""
        return "counted" if self.provenance.get("counted") else "fitted"

    def covers(self, claim: Claim) -> bool:
        """Whether kernels of a claim's types were measured, or counted.

        Kernels with a model of their own know at which rate their products run. Products that
        compute an operand, rather than choose its elements, were not measured: EfficientNet with 12
        whose operand is scaled took 218 us on an H200, 231 with kernels before them, which the
        coefficients prefer. Of AMD's some were counted.
        """
        group, work = claim.group, claim.work
        computes = work.operand_operations > 0 and work.operand_operations >= work.element_loads
        if computes and self.source == "counted":
            is_known = self._of_kind(claim)[NAMES.index("operand_operations")] > 0
        else:
            is_known = claim.template.name != "contraction"
        if computes and not is_known:
            return False
        if claim.matrix_dtype and claim.matrix_dtype not in self.products and not work.clocks:
            return False
        products = [op for op in group.members if is_contraction(op) and not claim.work.clocks]
        read = [v for op in products for v in op.tensors]
        sides = (((*group.inputs, *group.outputs), self.dtypes), (read, self.products))
        return all(
            value.dtype in dtypes or not value.dtype.startswith(("float", "bfloat"))
            for values, dtypes in sides
            for value in values
        )

    def orders(self, claims: Iterable[Claim]) -> bool:
        """Whether alternatives of these claims are ordered: all of them are of measured types.

        What has no tensor of a type that was multiplied is of another precision, of which few
        kernels were measured.
        """
        claims = tuple(claims)
        found = {
            value.dtype for claim in claims for value in (*claim.group.inputs, *claim.group.outputs)
        }
        return not found.isdisjoint(self.products) and all(map(self.covers, claims))

    def terms(self, claim: Claim, cache_bytes: int, units: int = 1) -> dict[str, float]:
        """Tell what a claim's kernels take, in microseconds by :data:`TERMS`."""
        own = self._of_kind(claim)
        row = features_of(claim, cache_bytes, units, is_shared=self.threads > 1).row
        found: dict[str, float] = {}
        for name, coefficient, feature in zip(NAMES, own, row, strict=True):
            found[TERMS[name]] = found.get(TERMS[name], 0.0) + coefficient * feature
        return found

    def _of_kind(self, claim: Claim) -> Sequence[float]:
        kind = kind_of(claim.template.name, claim.work.clocks)
        return self.coefficients.get(kind, self.coefficients[""])


def kind_of(template: str, clocks: float) -> str:
    """Name the coefficients of a template's claims: others where its kernels have a model."""
    return template + MODELLED if clocks else template


@lru_cache(maxsize=1)
def fits() -> Mapping[tuple[str, str, str, int], Fit]:
    """Read what ships with the package, by kind, architecture, name and threads of the device."""
    data = json.loads(files(__package__).joinpath(FILE).read_text())
    if tuple(data["features"]) != NAMES:
        raise RuntimeError(f"{FILE} has other features than the model")
    return {
        (one["kind"], one["arch"], one["name"], one.get("threads", 1)): Fit(
            one["coefficients"],
            frozenset(one["dtypes"]),
            frozenset(one["products"]),
            one["provenance"],
            one.get("threads", 1),
        )
        for one in data["devices"]
    }


def fit_of(device: Device) -> Fit | None:
    """Return the coefficients of a device; ``None`` where there are none.

    Of an architecture those of any board will do: provenance names it. Those of several threads
    tell of twice or half as many.
    """
    measured = device.kind, measured_as(device.arch)
    known = {key[2:]: fit for key, fit in fits().items() if key[:2] == measured}
    for name in (device.name, ""):
        if (name, 1) in known:
            return known[name, 1]
    cores = device.cores or 0
    near = [n for _, n in known if n <= MOST_APART * cores and cores <= MOST_APART * n]
    return known["", min(near, key=lambda n: max(n / cores, cores / n))] if near else None
