"""What the counting machine computes with: shapes and identities of values, never their data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tvm import relax

from .host import Profile
from .result import Kind


@dataclass(frozen=True)
class TensorValue:
    """A tensor of known or partly known shape."""

    shape: tuple[int | None, ...] | None  # extents; None where they depend on data
    dtype: str  # element type
    # Which allocation it views; None for inputs, weights and constants.
    allocation: int | None = None


@dataclass(frozen=True)
class ShapeValue:
    """A shape."""

    extents: tuple[int | None, ...]


@dataclass(frozen=True)
class FunctionValue:
    """A Relax function, with the arguments that a closure has bound last."""

    function: relax.Function
    name: str
    bound: tuple[object, ...] = ()


@dataclass
class Heap:
    """The virtual machine's slots for symbolic extents."""

    slots: list[int | None]


@dataclass
class Tally:
    """What has been counted so far.

    ``launches`` maps (kernel, PrimFunc, kind) to times, ``allocations`` an allocation to bytes.
    ``in_graph`` tells that a CUDA graph's launches are being counted, which the host does not make.
    """

    launches: dict[tuple[str, str, Kind], int] = field(default_factory=dict)
    calls: int = 0
    host_launches: int = 0
    in_graph: bool = False
    hidden_bytes: int = 0
    allocations: dict[int, int] = field(default_factory=dict)
    caveats: list[str] = field(default_factory=list)

    def launch(self, kernel: str, primfunc: str, kind: Kind, times: int = 1) -> None:
        """Add launches."""
        key = (kernel, primfunc, kind)
        self.launches[key] = self.launches.get(key, 0) + times
        if not self.in_graph:
            self.host_launches += times

    def launch_graph(self, body: Callable[[], object]) -> object:
        """Count a CUDA graph, whose launches ``body`` adds, as one launch of the host."""
        self.host_launches += 1
        self.in_graph = True
        try:
            return body()
        finally:
            self.in_graph = False

    def call(self, primfunc: str, profile: Profile) -> None:
        """Add one call of a PrimFunc."""
        self.calls += 1
        self.hidden_bytes += profile.hidden_bytes
        self.caveats += profile.caveats
        for (kernel, kind), times in profile.launches.items():
            self.launch(kernel, primfunc, kind, times)

    def add(self, other: Tally) -> None:
        """Add all that another tally holds."""
        for key, times in other.launches.items():
            self.launches[key] = self.launches.get(key, 0) + times
        self.host_launches += other.host_launches
        self.calls += other.calls
        self.hidden_bytes += other.hidden_bytes
        self.allocations.update(other.allocations)
        self.caveats += other.caveats

    @property
    def weight(self) -> tuple[int, int]:
        """Order of branches: more launches first, then more bytes."""
        size = self.hidden_bytes + sum(self.allocations.values())
        return sum(self.launches.values()), size


def allocations_of(value: object) -> Iterator[int]:
    """Yield the allocations that a value keeps alive."""
    if isinstance(value, TensorValue) and value.allocation is not None:
        yield value.allocation
    elif isinstance(value, tuple):
        for item in value:
            yield from allocations_of(item)
