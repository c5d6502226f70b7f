"""Microseconds of a kernel by its counts and the data sheet of its device.

    kernel   launch + the longer of
                 bytes of operands and results / what memory, or the last cache, delivers
                 rounds of blocks * round
    round    the longest of, for the blocks that a compute unit holds at once,
                 matrix    clocks of a SIMD's waves (RDNA: with vector instructions, in one pipe)
                 vector    the same
                 scalar    the same, of scalar instructions and of issued loads
                 LDS       clocks of a compute unit, bank conflicts included
                 L1        bytes that lanes ask for / 64 a clock
                 a wave    all clocks that it issues, and what it waits for loads: of their latency
                           what the instructions of all waves of its SIMD leave

Nothing here was measured: rates are those of AMD's guides and of :mod:`tvm_fusion.device.table`,
latency and the time of a launch those that the planner assumes. What the roofline does not know is
here: how many waves a SIMD has, which unit is the busiest, what waves wait for.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from tests.emulator.amd import Span
from tvm_fusion.device import Device
from tvm_fusion.schedule.contraction.mma.wave_tiles import LATENCY
from tvm_fusion.schedule.instructions.amd import HALF_FLOP_PER_CLOCK

from .count import Counts

# By lanes of a wave, of a compute unit: SIMDs; of a SIMD: the most waves, registers of a lane, and
# how many of them are given at a time (LLVM's guide to AMDGPU: CDNA2 and 3; RDNA3 of 1,536).
SIMDS, _WAVES = {64: 4, 32: 2}, {64: 8, 32: 16}
_FILE, _GRANULE = {64: 512, 32: 1536}, {64: 8, 32: 24}
_L1_BYTES = 64  # a clock of a compute unit
LAUNCH_US = 2.0
MEMORY, CACHE = 0.8, 2.5  # of the data sheet's bandwidth that kernels reach; the last cache's
OVERSHARE = 2.0  # bandwidth that a unit alone draws, over its fair share


@dataclass(frozen=True)
class Price:
    """What a kernel takes."""

    us: float  # the launch included
    waves: float  # of a SIMD at once, as registers, LDS and blocks allow
    bound: str  # what takes longest: ``memory``, or a line of the overview


def megahertz(device: Device) -> float:
    """Return the clock at which the data sheet's peak of half types is reached."""
    peak, units = device.peak_flops["float16"], device.sm_count or 1
    return peak / units / HALF_FLOP_PER_CLOCK[device.arch] / 1e6


def price(counts: Counts, device: Device, memory_us: float) -> Price:
    """Tell what a kernel takes.

    Parameters
    ----------
    memory_us
        What its bytes take alone: :func:`memory_us`.
    """
    lanes, units = device.warp_size or 64, device.sm_count or 1
    at_once = resident(counts, device)
    waves = at_once * counts.waves / SIMDS[lanes]
    rounds = -(-counts.blocks // (units * at_once))
    terms = _round(counts, lanes, at_once, max(1.0, waves))
    bound = max(terms, key=lambda name: terms[name])
    clocks_us = rounds * terms[bound] / megahertz(device)
    if memory_us > clocks_us:
        bound = "memory"
    return Price(LAUNCH_US + max(memory_us, clocks_us), waves, bound)


def memory_us(counts: Counts, device: Device, weight: float, cached: float) -> float:
    """Tell what a kernel's bytes take.

    Parameters
    ----------
    weight, cached
        Bytes from memory, and from the last cache.
    """
    share = min(1.0, counts.blocks * OVERSHARE / (device.sm_count or 1))
    bandwidth = (device.memory_bandwidth or 0) * MEMORY * share
    return (weight + cached / CACHE) / bandwidth * 1e6


def resident(counts: Counts, device: Device) -> int:
    """Count the blocks that a compute unit holds at once, of those that there are."""
    lanes, code = device.warp_size or 64, counts.code
    granule = _GRANULE[lanes]
    registers = -(-max(code.registers, 1) // granule) * granule
    waves = min(_WAVES[lanes], _FILE[lanes] // registers) * SIMDS[lanes]
    blocks = max(1, waves // counts.waves)
    if code.shared_bytes:
        blocks = min(blocks, (device.shared_memory_per_sm or 0) // code.shared_bytes)
    return max(1, min(blocks, -(-counts.blocks // (device.sm_count or 1))))


def _round(counts: Counts, lanes: int, at_once: int, waves: float) -> Mapping[str, float]:
    span = counts.span
    issued = sum(span.clocks.values())
    found = {
        "matrix": waves * span.clocks["matrix"],
        "vector": waves * span.clocks["vector"],
        "scalar": waves * sum(span.clocks[kind] for kind in ("scalar", "memory", "branch")),
        "LDS": at_once * counts.waves * span.lds_clocks,
        "L1": at_once * counts.waves * span.bytes / _L1_BYTES,
        "a wave": issued + _stalled(span, waves),
    }
    if lanes == 32:
        found["vector"] += found["matrix"]
    return found


def _stalled(span: Span, waves: float) -> float:
    """Add up what a wave waits for loads, which arrive in their order."""
    stalled = total = 0.0
    before = [(0.0, 0.0)]  # of each wait: where it is, and what was waited up to there
    for issued, waited, times in span.waits:
        at_load = next(late for at, late in reversed(before) if at <= issued)
        stall = max(0.0, issued * waves + at_load + LATENCY - waited * waves - stalled)
        stalled += stall
        total += times * stall
        before.append((waited, stalled))
    return total
