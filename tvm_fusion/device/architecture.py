"""Names of GPU architectures, read and written: the only place that knows their digits.

``sm_90a``: compute capability 9.0, with the instructions that exist on it alone. ``gfx942``:
version 9.4, stepping 2. Which device runs which architecture's code is decided here, too.
"""

import re
from collections.abc import Container, Iterable

_NVIDIA = re.compile(r"sm_(?P<major>\d+)(?P<minor>\d)(?P<variant>[af]?)")


def nvidia_arch(major: int, minor: int, known: Container[str]) -> str:
    """Name the architecture of a device by its compute capability.

    The variant with the suffix ``a`` where it is known: such a device always runs its code.
    """
    arch = f"sm_{major}{minor}"
    return f"{arch}a" if f"{arch}a" in known else arch


def amd_arch(version: int) -> str:
    """Name the architecture that AMD's kernel driver writes as a number: 90402 is ``gfx942``."""
    major, minor, step = version // 10000, version // 100 % 100, version % 100
    return f"gfx{major}{minor:x}{step:x}"


def guess_kind(name: str) -> str | None:
    """Tell the target kind of what looks like an architecture, as in ``sm_80``."""
    return {"sm_": "cuda", "gfx": "rocm"}.get(name[:3])


def virtual_arch(arch: str) -> str:
    """Name nvcc's virtual architecture of a real one: ``compute_90a`` of ``sm_90a``."""
    return arch.replace("sm_", "compute_")


def number(arch: str) -> str:
    """Take the prefix off: ``90a`` of ``sm_90a``, as nvFatbin wants it."""
    return arch.removeprefix("sm_")


def listed_archs(text: str, known: Iterable[str]) -> frozenset[str]:
    """Find the architectures that nvcc lists.

    The list leaves out the variants with a suffix, which come with their base.
    """
    listed = {match[0] for match in _NVIDIA.finditer(text)}
    return frozenset(listed | {arch for arch in known if arch.rstrip("af") in listed})


def runs_on(code: str, device: str) -> bool:
    """Tell whether machine code for one architecture runs on a device of another.

    NVIDIA's does on the same major version and no older minor one, with a suffix on its own device
    alone (CUDA C++ Programming Guide, binary compatibility). AMD's does on its own alone.
    """
    if code == device:
        return True
    made, present = _NVIDIA.fullmatch(code), _NVIDIA.fullmatch(device)
    if made is None or present is None or made["variant"]:
        return False
    return made["major"] == present["major"] and int(made["minor"]) <= int(present["minor"])


def choose_arch(archs: Iterable[str], device: str) -> str | None:
    """Choose which of several architectures' code runs best on a device.

    Parameters
    ----------
    archs
        Ascending, as in :attr:`TargetSpec.archs`.

    Returns
    -------
    str, optional
        Its own, or else the highest that runs there; ``None`` if none does.
    """
    able = [arch for arch in archs if runs_on(arch, device)]
    return device if device in able else able[-1] if able else None
