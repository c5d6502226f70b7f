"""What is known of a group's kernels when they are made: collected for the artifact's manifest.

The scheduling stage calls :func:`record`; the compiler opens :func:`collecting` around it.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...device import Device
    from .template import Claim


@dataclass(frozen=True)
class KernelInfo:
    """A group's kernels: what they compute, how, and what they are expected to take."""

    template: str  # which one makes them
    operators: tuple[str, ...]  # titles of the group's members, in order
    type: str = ""  # the most complex of their mapping types
    # The template's configuration; empty where it has no choices.
    config: Mapping[str, int | str] = field(default_factory=dict)
    # Memory traffic of one call; ``None`` where it depends on symbolic dimensions.
    bytes: int | None = None
    # Operations of the members, without recomputation; an expression over symbolic dimensions where
    # they depend on these.
    flops: int | str = 0
    dtype: str = "float32"  # at whose rate most of the arithmetic runs
    # Expected microseconds of one call; with symbolic dimensions at
    # :data:`tvm_fusion.ecg.work.ASSUMED_DIM`.
    us: float = 0.0
    # Where these come from: ``measured``, ``fitted``, ``counted`` or ``roofline``.
    source: str = "roofline"
    record: str = ""  # which record, where they were measured


#: Describes the kernels of a claim for a device.
Describe = Callable[["Claim", "Device"], KernelInfo]
Infos = list[tuple[KernelInfo, tuple[str, ...]]]

_infos: contextvars.ContextVar[Infos | None] = contextvars.ContextVar("kernels", default=None)


def record(info: KernelInfo, kernels: tuple[str, ...]) -> None:
    """Tell the innermost :func:`collecting`, if there is one, which PrimFuncs a group became.

    Parameters
    ----------
    kernels
        Names of PrimFuncs in the order in which they are called.
    """
    found = _infos.get()
    if found is not None:
        found.append((info, kernels))


def rename(names: Mapping[str, Iterable[str]]) -> None:
    """Tell what has become of PrimFuncs that were recorded.

    Parameters
    ----------
    names
        By the old name, all that there are instead; none where nothing calls it any more.
    """
    found = _infos.get()
    if found is None:
        return
    before, found[:] = list(found), []
    for info, kernels in before:
        old = next((name for name in kernels if name in names), None)
        for new in [old] if old is None else names[old]:
            found.append((info, tuple(new if new and name == old else name for name in kernels)))


@contextlib.contextmanager
def collecting() -> Iterator[Infos]:
    """Collect what is recorded inside of ``with``; yields the growing list."""
    found: Infos = []
    token = _infos.set(found)
    try:
        yield found
    finally:
        _infos.reset(token)
