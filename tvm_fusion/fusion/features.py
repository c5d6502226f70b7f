"""Features of a claim, to which the cost model's coefficients are fitted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..core.template import Claim
    from ..ecg.graph import Operator

# Operations per byte of operands and results from which an operator counts as a contraction, which
# matrix units take where there are some. Single operators full of transcendentals stay below.
_CONTRACTION = 16
NAMES = ("launches", "weight_kib", "cached_kib", "other_kib", "matrix_mflop", "vector_mflop")


@dataclass(frozen=True)
class Features:
    """Work of one claim.

    Attributes
    ----------
    launches : float
        Kernels.
    weight_kib, cached_kib, other_kib : float
        Traffic by where it comes from: parameters, tensors that fit into the last-level cache, and
        those that do not.
    matrix_mflop, vector_mflop : float
        Operations of contractions, and all others.
    """

    launches: float
    weight_kib: float
    cached_kib: float
    other_kib: float
    matrix_mflop: float
    vector_mflop: float

    @property
    def row(self) -> Sequence[float]:
        """The numbers, in the order of :data:`NAMES`."""
        return tuple(getattr(self, name) for name in NAMES)


def features_of(claim: Claim, cache_bytes: int) -> Features:
    """Take a claim's traffic and operations apart.

    Parameters
    ----------
    claim : Claim
        Its traffic is shared among its group's tensors by their sizes.
    """
    tensors = (*claim.group.inputs, *claim.group.outputs)
    sizes = {"weight": 0, "cached": 0, "other": 0}
    for value in tensors:
        fits = "cached" if value.bytes <= cache_bytes else "other"
        sizes["weight" if value.is_parameter else fits] += value.bytes
    everything = sum(sizes.values())
    scale = claim.bytes / everything / 1024 if everything else 0.0
    flops = sum(op.flops for op in claim.group.members)
    matrix = sum(op.flops for op in claim.group.members if is_contraction(op))
    share = matrix / flops if flops else 0.0
    return Features(
        float(claim.launches),
        sizes["weight"] * scale,
        sizes["cached"] * scale,
        sizes["other"] * scale,
        claim.flops * share / 1e6,
        claim.flops * (1 - share) / 1e6,
    )


def is_contraction(operator: Operator) -> bool:
    """Whether an operator does much arithmetic with few bytes."""
    tensors = (*operator.tensors, *operator.results)
    return bool(operator.flops > _CONTRACTION * sum(v.bytes for v in tensors))
