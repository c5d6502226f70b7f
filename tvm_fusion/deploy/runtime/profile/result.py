"""A profile as data: kernels with their times, work and prices; the host's part; the machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Rates:
    """What the machine reaches."""

    # Bytes per second of a large copy, read and written bytes counted; 0 where it is not known.
    bandwidth: float = 0.0
    peak_flops: Mapping[str, float] = field(default_factory=dict)  # operations per second by dtype
    peak_from: str = "measured"  # where the peak comes from: ``measured`` or ``published``


@dataclass(frozen=True)
class KernelTime:
    """One group's kernels in one call of the model."""

    kernels: tuple[str, ...]  # names of the PrimFuncs that were called, in order
    names: tuple[str, ...]  # what the user's model calls the members
    operators: tuple[str, ...]  # the members' operators
    # Which template made the kernels; mapping type. Empty for what is not of a group, such as a
    # library's function.
    template: str
    type: str
    config: Mapping[str, int | str]  # the template's configuration
    # Microseconds: the mean of the faster half of all runs, and the least of all.
    us: float
    least_us: float
    # When it began, from the beginning of the run, and how long it took, in the fastest run.
    start_us: float
    spent_us: float
    share: float  # of all kernels' time
    # What the planner expected; ``None`` where it was not asked, or for other extents of symbolic
    # dimensions.
    predicted_us: float | None
    # Where that comes from: ``measured``, ``fitted`` or ``roofline``; which record.
    source: str
    record: str
    # Memory traffic and operations.
    bytes: int
    flops: int
    dtype: str  # at whose rate the operations run
    # Of the machine's bandwidth and peak; ``None`` where these are not known. More than 1 where
    # data come from caches.
    bandwidth_share: float | None
    peak_share: float | None
    reads: tuple[int, ...] = ()  # positions of the rows whose results it reads

    @property
    def title(self) -> str:
        """The operators, such as ``matmul + add + gelu``; else the kernels' names."""
        return " + ".join(self.operators or self.kernels)


@dataclass(frozen=True)
class Profile:
    """Where the time of a model's function goes."""

    # The model; what it was compiled for; what it ran on.
    source: str
    target: str
    device: str
    function: str  # which one
    threads: int  # of the CPU's team; 0 on a GPU
    runs: int  # timed runs of each kind
    extents: Mapping[str, int]  # of symbolic dimensions
    # A whole call without timers, from arrays to arrays. On a CPU the kernels' sum by its median
    # share of such calls, each next to those before and after it; on a GPU the calls' median.
    end_to_end_us: float
    kernels_us: float  # sum of the rows
    # What is left of ``end_to_end_us``: checks of arguments, the virtual machine, allocation, gaps
    # between kernels. Below 0 where timing itself slows kernels, or a GPU's overlap in a call.
    host_us: float
    # Where kernels are timed by CUDA events: a whole call that launches them one by one, as timing
    # does, and not as a CUDA graph; ``None`` for all others.
    launched_us: float | None
    clock: str  # how kernels are timed: ``cpu``, ``cupti`` or ``cuda events``
    rates: Rates  # of the machine
    rows: tuple[KernelTime, ...]  # in the order of the calls
    notes: tuple[str, ...] = ()  # what a reader should know
    # Of ``host_us``, when no kernel runs in a row of calls that do not wait for each other: between
    # kernels, or where the host is slower. ``None`` on a CPU, and where kernels are timed between
    # events, which makes them slower.
    gaps_us: float | None = None
    # A call among many that do not wait for each other, so that a GPU's work hides the host's;
    # ``None`` on a CPU.
    streamed_us: float | None = None

    @property
    def kernels_share(self) -> float:
        """The kernels' sum over the whole call."""
        return self.kernels_us / self.end_to_end_us if self.end_to_end_us else 0.0

    def to_json(self) -> dict[str, Any]:
        """Return plain values; read again by :meth:`from_json`."""
        data = asdict(self)
        for row, one in zip(data["rows"], self.rows, strict=True):
            row["title"] = one.title
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Profile:
        """Read what :meth:`to_json` gave, also through JSON text."""
        rows = tuple(
            KernelTime(**{k: _frozen(v) for k, v in row.items() if k != "title"})
            for row in data["rows"]
        )
        rates = Rates(**data["rates"])
        rest = {k: _frozen(v) for k, v in data.items() if k not in ("rows", "rates")}
        return cls(**rest, rates=rates, rows=rows)


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
