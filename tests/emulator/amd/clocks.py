"""Issue clocks of the loops of a launch, by kind: what an analytical model of a kernel needs.

Clocks are those that an instruction of one wave keeps its unit of a SIMD busy, after AMD's guides
and LLVM's scheduling models; no device was measured. Units work side by side for different waves,
so that the busiest one bounds a loop from below, and the sum bounds a single wave.
"""

import re
from dataclasses import dataclass

import numpy as np

from .machine import Launch
from .text import Instruction

KINDS = ("matrix", "vector", "scalar", "lds", "memory", "branch", "wait")
# FLOP of matrix instructions a clock and SIMD, by the type of A.
_RATES = {
    "gfx90a": {"f16": 256, "bf16": 256, "i8": 256, "f32": 64, "f64": 64},
    "gfx942": {
        "f16": 512, "bf16": 512, "i8": 1024, "fp8": 1024, "bf8": 1024, "xf32": 256, "f32": 64,
        "f64": 64,
    },
    "gfx1100": {"f16": 256, "bf16": 256, "iu8": 256},
}  # fmt: skip
_MATRIX = re.compile(
    r"v_(?:mfma|wmma)_\w+?_(\d+)x(\d+)x(\d+)_?(xf32|bf16|f16|i8|iu8|fp8|bf8|f32|f64)"
)
# A quarter of the rate of others.
_SLOW = re.compile(
    r"v_(rcp|rsq|sqrt|exp|log|sin|cos)_|v_mul_lo_u32|v_mul_hi_[iu]32(?!_)|v_mad_[iu]64|v_div_scale"
)


def kind_of(inst: Instruction) -> str:
    """Return which unit an instruction keeps busy: one of :data:`KINDS`."""
    name = inst.name
    if name.startswith(("v_mfma", "v_wmma")):
        return "matrix"
    if name.startswith("v_"):
        return "vector"
    if name.startswith("ds_"):
        return "lds"
    if name.startswith(("global_", "flat_", "buffer_", "scratch_", "s_load", "s_buffer_load")):
        return "memory"
    if "branch" in name or name in ("s_setpc_b64", "s_swappc_b64", "s_endpgm"):
        return "branch"
    if name.startswith(("s_wait", "s_nop", "s_barrier", "s_delay_alu", "s_sleep", "s_clause")):
        return "wait"
    return "scalar"


def clocks_of(inst: Instruction, arch: str) -> int:
    """Return the clocks that an instruction of one wave is issued for.

    LDS instructions count one turn here; turns and conflicts are counted where they happen.
    """
    kind = kind_of(inst)
    wide = arch.startswith("gfx9")
    step = 4 if wide else 1  # a wave of 64 lanes goes through 16 lanes of a unit
    if kind == "matrix":
        found = _MATRIX.match(inst.name)
        if found is None:
            raise ValueError(f"no clocks of {inst.text!r}")
        m, n, k = (int(x) for x in found.groups()[:3])
        return 2 * m * n * k // _RATES[arch][found[4]]
    if kind == "wait":
        return int(inst.operands[0], 0) + 1 if inst.name == "s_nop" else 0
    if kind == "vector":
        if "f64" in inst.name and not wide:
            return 16
        return 4 * step if _SLOW.match(inst.name) else step
    return step


_SIZES = (
    (r"x4|b128", 16), (r"x3|b96", 12), (r"x2|b64", 8), (r"dword|b32", 4),
    (r"short|[uib]16|d16", 2), (r"byte|[uib]8", 1),
)  # fmt: skip
_LOAD = re.compile(r"(global|flat|buffer)_load")
_STORE = re.compile(r"(global|flat|buffer)_(store|atomic)")
_WAIT = re.compile(r"s_waitcnt.*\bvmcnt\((\d+)\)")


def bytes_of(inst: Instruction) -> int:
    """Return the bytes of global memory that a lane loads or stores; 0 of other instructions."""
    if not (_LOAD.match(inst.name) or _STORE.match(inst.name)):
        return 0
    kind = inst.name.partition("_")[2]
    return next(size for pattern, size in _SIZES if re.search(pattern, kind))


@dataclass(frozen=True)
class Span:
    """Instructions in their order, and what a wave does each time that it goes through them.

    Attributes
    ----------
    first, last
        Addresses of the first and of the last one.
    turns
        Of a wave.
    clocks
        By kind.
    instructions
        How many, by kind.
    lds_clocks, lds_ideal
        Of the LDS that the waves of a compute unit share, with conflicts and without; 0 unless the
        launch counted them.
    bytes
        Of global memory, loaded and stored, of all lanes.
    narrow_loads
        Of those, loads of two bytes or one.
    waits
        Waits for global loads in their order: the clocks that the wave has issued from the first
        instruction to the load, those to the wait, both once through all, and how often.
    """

    first: int
    last: int
    turns: float
    clocks: dict[str, float]
    instructions: dict[str, float]
    lds_clocks: float
    lds_ideal: float
    bytes: float
    narrow_loads: float
    waits: tuple[tuple[float, float, float], ...]

    @property
    def matrix_share(self) -> float:
        """Clocks of matrix instructions among all that a wave issues."""
        return self.clocks["matrix"] / sum(self.clocks.values())


def loops(launch: Launch, arch: str) -> list[Span]:
    """Return the innermost loops that waves ran, the longest first.

    Parameters
    ----------
    launch
        What :func:`run` returned, with ``clocks=True`` for those of LDS.
    arch
        ``gfx942``.
    """
    spans = set()
    for at, step in enumerate(launch.steps):
        to = step.goes_to
        if to is not None and to <= at and launch.counts[at]:
            spans.add((to, at))
    inner = [s for s in spans if not any(o != s and s[0] <= o[0] and o[1] <= s[1] for o in spans)]
    found = [_span(launch, arch, first, last, float(launch.counts[last])) for first, last in inner]
    return sorted(found, key=lambda x: -x.turns * sum(x.clocks.values()))


def whole(launch: Launch, arch: str) -> Span:
    """Return the kernel from its first instruction to its last, as :func:`loops` does loops."""
    return _span(launch, arch, 0, len(launch.steps) - 1, float(launch.waves))


def products(launch: Launch, arch: str) -> Span:
    """Return the part from the first matrix instruction to the last, as :func:`loops` does."""
    at = [i for i, step in enumerate(launch.steps) if kind_of(step.inst) == "matrix"]
    ran = [i for i in at if launch.counts[i]] or [0]
    return _span(launch, arch, ran[0], ran[-1], float(launch.counts[ran[-1]]))


def _span(launch: Launch, arch: str, first: int, last: int, turns: float) -> Span:
    clocks, instructions = dict.fromkeys(KINDS, 0.0), dict.fromkeys(KINDS, 0.0)
    lds, moved, narrow, now = np.zeros(2), 0.0, 0.0, 0.0
    pending: list[float | None] = []  # when loads were issued; stores, of which none waits
    waits = []
    for at in range(first, last + 1):
        if not launch.counts[at]:
            continue
        inst = launch.steps[at].inst
        times = float(launch.counts[at]) / turns
        kind = kind_of(inst)
        clocks[kind] += times * clocks_of(inst, arch)
        instructions[kind] += times
        size = bytes_of(inst)
        moved += times * size * launch.lanes
        if _LOAD.match(inst.name):
            narrow += times * (size <= 2)
            pending.append(now)
        elif size and arch.startswith("gfx9"):
            pending.append(None)
        elif wait := _WAIT.match(inst.text):
            ready = len(pending) - int(wait[1])
            if ready > 0 and (issued := pending[ready - 1]) is not None:
                waits.append((issued, now, times))
            pending = pending[max(ready, 0) :]
        now += clocks_of(inst, arch)
        if launch.clocks is not None and inst.address in launch.clocks:
            lds += np.array(launch.clocks[inst.address][:2]) / turns
    ends = [launch.steps[at].inst.address for at in (first, last)]
    of_wave = turns / launch.waves
    found = float(lds[0]), float(lds[1]), moved, narrow, tuple(waits)
    return Span(*ends, of_wave, clocks, instructions, *found)
