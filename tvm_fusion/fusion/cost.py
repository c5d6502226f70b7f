"""What a claim costs, by a model.

What was measured decides in :mod:`.profile`: whole alternatives against each other, never one
kernel against a model's figure. Otherwise a model orders alternatives, all of them by the same one:

    fitted     GPUs whose kernels were measured (:mod:`.fitted`): coefficients of an architecture
    counted    the same for AMD GPUs, of which no device was there: fitted to what a model says of
               the clocks of their machine code
    roofline   all others

Williams, Waterman and Patterson ("Roofline", CACM 2009) bound a kernel by its traffic over the
bandwidth and by its arithmetic over the peak rate; launches come on top. It is no prediction. On
CPUs it orders alternatives although some were measured: their coefficients are of one machine, and
on another one of the same target plans would be others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ..device import Device
from .features import is_contraction
from .fitted import fit_of

if TYPE_CHECKING:
    from ..core.contract.template import Claim
    from ..ecg.graph import Operator

GB, TERA, MIB = 1e9, 1e12, 1 << 20
NO_DEVICE = "no device"  # the record of figures that nothing measured


@dataclass(frozen=True)
class Estimate:
    """Microseconds of all launches of a claim, and where the figure comes from."""

    us: float
    source: Literal["measured", "fitted", "counted", "roofline"]
    record: str = ""

    @property
    def origin(self) -> str:
        """The source with its record, for a reader."""
        return f"{self.source}, {self.record}" if self.record else self.source


@dataclass(frozen=True)
class _Rates:
    """What is assumed about a kind of device: fallbacks for None, and unpublished factors."""

    units: int  # multiprocessors or cores
    bandwidth: float  # bytes per second of one unit when all are busy
    flops: float  # float32 operations per second of one unit; of a CPU's, per 32-bit lane
    cache_bytes: int  # last-level cache
    cache_speedup: float  # its bandwidth over the memory's
    # Bandwidth that one unit alone draws, over its fair share: a block has few loads in flight.
    overshare: float
    # What generated kernels reach of the bandwidth and of the peak rate.
    memory_efficiency: float
    compute_efficiency: float
    launch_us: float  # per kernel
    wake_us: float  # per kernel that runs on several units: waking a CPU's worker threads


# Bandwidths are those of a copy: a server core draws about 12 GB/s alone and 10 among others, which
# makes one of two cores reach 60 % of both. 2.5 GHz and two fused multiply-adds a cycle make 10
# GFLOP/s a lane. A GPU's units: 128 lanes near 0.8 GHz, so that an unknown board is no fast one. An
# untuned launch without a graph takes about 2 us; a call of a compiled kernel about 1.5 us.
_GPU = _Rates(80, 8 * GB, 0.2 * TERA, 4 * MIB, 2.5, 2.0, 0.8, 0.3, 2.0, 0.0)
_RATES: Mapping[str, _Rates] = {
    "llvm": _Rates(8, 10 * GB, 10 * GB, 8 * MIB, 3.0, 1.2, 1.0, 0.3, 1.5, 5.0),
    "cuda": _GPU,
    "rocm": _GPU,
}
_CLOCK = 2.5e9  # of a CPU
_LANES = 4  # of a CPU's vector registers when their width is unknown: 128 bits


class CostModel:
    """Costs of claims on one device.

    Parameters
    ----------
    device
        Fields that are None count as documented defaults of the device's kind.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._fit = fit_of(device)
        self._threads = self._fit.threads if self._fit else 1
        self._seconds: dict[Operator, float] = {}
        self._rates = rates = _RATES[device.kind]
        self.units = (device.cores if device.kind == "llvm" else device.sm_count) or rates.units
        memory = device.memory_bandwidth or rates.bandwidth * self.units
        self.bandwidth = memory * rates.memory_efficiency
        self.cache_bytes = device.l3_bytes or device.l2_bytes or rates.cache_bytes
        lanes = (device.vector_bits or 32 * _LANES) // 32 if device.kind == "llvm" else 1
        self.vector_peak = device.peak_flops.get("float32") or rates.flops * lanes * self.units

    def cost(self, claim: Claim) -> Estimate:
        """Tell what a claim's launches take.

        Parameters
        ----------
        claim
            Symbolic dimensions of its group count as :data:`tvm_fusion.ecg.work.ASSUMED_DIM`.

        Returns
        -------
        Estimate
            The figure of the model that was fitted to the device's kernels, if it was; else the
            roofline's. Models' figures never fall as bytes, flops or launches grow.
        """
        if not self._is_fitted_alone(claim):
            return self.compare([claim])[0]
        us = self._fitted_us(claim)
        if self._threads > 1:
            return self._of_fit(us)
        # Fitted to one thread, shared among several.
        wake = self._rates.wake_us * claim.launches
        units = min(self.units, max(claim.parallelism, 1))
        return self._of_fit(min(us, us / units + wake) if units > 1 else us)

    def _is_fitted_alone(self, claim: Claim) -> bool:
        """Whether a claim has a fitted price on a CPU, whose alternatives the roofline orders."""
        fit = self._fit
        return fit is not None and self._device.kind == "llvm" and fit.covers(claim)

    def most_of(self, claim: Claim) -> str:
        """Name what most of :meth:`cost` is for, as :meth:`largest_term` does."""
        if not self._is_fitted_alone(claim):
            return self.largest_term([claim])
        found = self._fitted(self.chosen(claim))
        share = self.cost(claim).us / sum(found.values())
        return _largest({name: us * share for name, us in found.items()})

    def estimate(self, claim: Claim) -> float:
        """Tell what the model says that choices are made by."""
        return self.total([claim])

    def total(self, claims: Iterable[Claim]) -> float:
        """Add up what claims cost one after the other, in microseconds, to choose by."""
        (found,) = self.compare(claims)
        return found.us

    def compare(self, *alternatives: Iterable[Claim]) -> tuple[Estimate, ...]:
        """Tell what alternatives cost, all by the same model.

        Parameters
        ----------
        *alternatives
            Each a way to do the same: claims that run one after the other.

        Returns
        -------
        tuple of Estimate
            One per alternative.
        """
        ways = [tuple(map(self.chosen, claims)) for claims in alternatives]
        if self._are_measured(claim for claims in ways for claim in claims):
            totals = [sum(map(self._fitted_us, claims)) for claims in ways]
            return tuple(self._of_fit(us) for us in totals)
        return tuple(Estimate(self.roofline(claims), "roofline") for claims in ways)

    def roofline(self, claims: Iterable[Claim]) -> float:
        """Add up the roofline's microseconds of claims."""
        return sum(map(self._roofline, claims))

    def orders_by_fit(self, claims: Iterable[Claim]) -> bool:
        """Whether alternatives of these claims are ordered by the fitted model.

        What will run is asked about: images as they are imported may need kernels of other kinds.
        """
        return self._are_measured(map(self.chosen, claims))

    def _are_measured(self, claims: Iterable[Claim]) -> bool:
        fit = self._fit
        return fit is not None and self._device.kind != "llvm" and fit.orders(claims)

    def largest_term(self, claims: Iterable[Claim]) -> str:
        """Name what most of a price is for, as in "traffic, 7.0 of 12.0 us"."""
        claims = tuple(claims)
        terms = self._fitted if self.orders_by_fit(claims) else self._bound_terms
        found: dict[str, float] = {}
        for claim in claims:
            for name, us in terms(self.chosen(claim)).items():
                found[name] = found.get(name, 0.0) + us
        return _largest(found)

    def _of_fit(self, us: float) -> Estimate:
        assert self._fit is not None
        is_counted = self._fit.source == "counted"
        return Estimate(us, self._fit.source, NO_DEVICE if is_counted else "")

    def _fitted(self, claim: Claim) -> dict[str, float]:
        assert self._fit is not None
        return self._fit.terms(claim, self.cache_bytes, self.units)

    def _fitted_us(self, claim: Claim) -> float:
        return sum(self._fitted(self.chosen(claim)).values())

    def chosen(self, claim: Claim) -> Claim:
        """Choose the claim, or the same group in another layout where that is cheaper."""
        laid_out = claim.laid_out
        if laid_out is None:
            return claim
        if self._are_measured((claim, laid_out)):
            return min(claim, laid_out, key=lambda one: sum(self._fitted(one).values()))
        return min(claim, laid_out, key=self._bound)

    def _roofline(self, claim: Claim) -> float:
        return self._bound(self.chosen(claim))

    def _bound(self, claim: Claim) -> float:
        return sum(self._bound_terms(claim).values())

    def _bound_terms(self, claim: Claim) -> dict[str, float]:
        """List what a claim waits for in the roofline model: memory or arithmetic, and launches."""
        rates = self._rates
        memory = claim.bytes * self._seconds_per_byte(claim)
        compute = claim.flops_to_price * self._seconds_per_operation(claim)

        def on(units: int) -> dict[str, float]:
            share = min(1.0, units * rates.overshare / self.units)
            busy = min(1.0, units / self.units)
            wake = rates.wake_us if min(units, self.units) > 1 else 0.0
            moving, computing = memory / share, compute / busy
            longest = {"traffic": moving} if moving >= computing else {"operations": computing}
            terms = {name: seconds * 1e6 for name, seconds in longest.items()}
            return terms | {"launches": claim.launches * (rates.launch_us + wake)}

        # Small work is not worth waking another core for.
        parallelism = max(claim.parallelism, 1)
        most = on(parallelism)
        return min(on(1), most, key=lambda terms: sum(terms.values())) if rates.wake_us else most

    def _seconds_per_byte(self, claim: Claim) -> float:
        """Averaged over the group's tensors: what fits into the last-level cache comes from there.

        Weights never do: between two runs everything else has been through the cache.
        """
        tensors = (*claim.group.inputs, *claim.group.outputs)
        cached = sum(v.bytes for v in tensors if not v.is_parameter and v.bytes <= self.cache_bytes)
        everything = sum(v.bytes for v in tensors)
        fraction = cached / everything if everything else 1.0
        return (1 - fraction + fraction / self._rates.cache_speedup) / self.bandwidth

    def _seconds_per_operation(self, claim: Claim) -> float:
        """Averaged over the members by their share in the arithmetic.

        Products of operands that the kernel takes casts off run at the peak of what is left.
        """
        flops, seconds = 0, 0.0
        narrow = self._matrix_peak(claim.matrix_dtype)
        for op in claim.group.members:
            flops += op.flops
            if narrow is not None and is_contraction(op):
                seconds += op.flops / narrow
                continue
            if op not in self._seconds:  # planning asks about the same operators again and again
                self._seconds[op] = op.flops / self._peak(op)
            seconds += self._seconds[op]
        average = seconds / flops if flops else 1 / self.vector_peak
        return average / self._rates.compute_efficiency

    def _matrix_peak(self, dtype: str) -> float | None:
        """Operations per second on matrix units for a type; a CPU's take a cycle for a row."""
        device = self._device
        if device.kind != "llvm":
            return device.peak_flops.get(dtype)
        rows = [2 * x.n * x.k for x in device.matrix_instructions if x.dtype == dtype]
        return max(rows) * _CLOCK * self.units if rows else None

    def _peak(self, operator: Operator) -> float:
        """Operations per second on the units that the operator runs on."""
        dtypes = [v.dtype for v in operator.tensors]
        if is_contraction(operator):
            rates = self._device.peak_flops
            return max((rates[d] for d in dtypes if d in rates), default=self.vector_peak)
        # Elementwise arithmetic runs on the vector units, whatever matrix units could do.
        return self.vector_peak / 2 if "float64" in dtypes else self.vector_peak


def _largest(terms: Mapping[str, float]) -> str:
    """Name the largest of a price's terms; empty where there is none."""
    if not terms:
        return ""
    name = max(terms, key=lambda one: terms[one])
    return f"{name}, {terms[name]:.1f} of {sum(terms.values()):.1f} us"
