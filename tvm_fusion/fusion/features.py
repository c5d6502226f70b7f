"""Features of a claim, to which the cost model's coefficients are fitted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from .reshapes import is_view

if TYPE_CHECKING:
    from ..core.contract.template import Claim
    from ..ecg.graph import Operator, Value

# Operations per byte of operands and results from which an operator counts as a contraction, which
# matrix units take where there are some. Single operators full of transcendentals stay below.
_CONTRACTION = 16
# Of a cache: what no kernel of the graph wrote stays in it from the last call on if it is as small.
# Keys and values of 16,384 positions do not: read by products of their own, priced as if they did,
# 8 layers of Llama-3-8B took 1,687 us a token on an H200, by flash-decoding 1,303.
_KEPT = 1 / 8
_SHARED = ("weight_kib", "cached_kib", "other_kib", "matrix_mflop", "vector_mflop")
NAMES = (
    *("launches", "weight_kib", "cached_kib", "other_kib", "unit_kib"),
    *("matrix_mflop", "vector_mflop", "kiloclocks"),
    *("element_loads", "thread_loads", "element_stores", "operand_operations"),
)


@dataclass(frozen=True)
class Features:
    """Work of one claim."""

    launches: float  # kernels
    # Traffic by where it comes from: parameters, tensors that fit into the last-level cache, and
    # those that do not.
    weight_kib: float
    cached_kib: float
    other_kib: float
    # Traffic of the busiest multiprocessor or core, with what it reads again from caches: few
    # blocks have few loads in flight.
    unit_kib: float
    # Operations of contractions whose kernels have no model, and all others.
    matrix_mflop: float
    vector_mflop: float
    # What the template's model of its kernels says, in thousands of a multiprocessor's clocks.
    kiloclocks: float = 0.0
    # In millions, those of a thread in thousands: see
    # :class:`~tvm_fusion.core.contract.kernel_work.KernelWork`.
    element_loads: float = 0.0
    thread_loads: float = 0.0
    element_stores: float = 0.0
    operand_operations: float = 0.0

    @property
    def row(self) -> Sequence[float]:
        """The numbers, in the order of :data:`NAMES`."""
        return tuple(getattr(self, name) for name in NAMES)


def features_of(
    claim: Claim, cache_bytes: int, units: int = 1, *, is_shared: bool = False
) -> Features:
    """Take a claim's traffic and operations apart.

    Parameters
    ----------
    claim
        Its traffic is shared among its group's tensors by their sizes.
    cache_bytes, units
        The last-level cache; multiprocessors or cores.
    is_shared
        Whether all work is that of the busiest unit, as threads of a CPU share it.
    """
    tensors = (*claim.group.inputs, *claim.group.outputs)
    sizes = {"weight": 0, "cached": 0, "other": 0}
    for value in tensors:
        fits = "cached" if is_cached(value, cache_bytes) else "other"
        sizes["weight" if value.is_parameter else fits] += value.bytes
    everything = sum(sizes.values())
    scale = claim.bytes / everything / 1024 if everything else 0.0
    flops = sum(op.flops for op in claim.group.members)
    matrix = sum(op.flops for op in claim.group.members if is_contraction(op))
    share = matrix / flops if flops else 0.0
    work = claim.work
    # Clocks are those of products; what is repeated of other operations is counted by itself.
    total = flops if work.clocks else claim.flops_to_price
    found = Features(
        float(claim.launches),
        sizes["weight"] * scale,
        sizes["cached"] * scale,
        sizes["other"] * scale,
        (claim.bytes + work.reread_bytes) / 1024 / max(1, min(claim.parallelism, units)),
        0.0 if work.clocks else total * share / 1e6,
        total * (1 - share) / 1e6,
        work.clocks / 1e3,
        work.element_loads / 1e6,
        work.thread_loads / 1e3,
        work.element_stores / 1e6,
        work.operand_operations / 1e6,
    )
    share = max(1, min(claim.parallelism, units)) if is_shared else 1
    return replace(found, **{name: getattr(found, name) / share for name in _SHARED})


def is_cached(value: Value, cache_bytes: int) -> bool:
    """Whether a tensor that is no weight is found in the last-level cache."""
    if not cache_bytes * _KEPT < value.bytes <= cache_bytes:
        return value.bytes <= cache_bytes
    producer = value.producer
    while producer is not None and not producer.is_opaque and is_view(producer):
        producer = producer.tensors[0].producer
    return producer is not None and not producer.is_opaque


def is_contraction(operator: Operator) -> bool:
    """Whether an operator does much arithmetic with few bytes."""
    tensors = (*operator.tensors, *operator.results)
    return bool(operator.flops > _CONTRACTION * sum(v.bytes for v in tensors))
