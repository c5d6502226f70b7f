"""What must be in place around TVM to lower and export for a target."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from ...device.target import TargetSpec
from . import host
from .host import thread_team, tile_permission

__all__ = ["Toolchain", "thread_team", "tile_permission", "toolchain"]


@dataclass(frozen=True)
class Toolchain:
    """The tools that a build uses."""

    link: Callable[..., Any]  # the ``fcompile`` argument of ``export_library``
    # What turns kernels into machine code: ``"nvcc"``, ``"nvrtc"``, or the command of an lld.
    device_compiler: str | None = None


@contextmanager
def toolchain(spec: TargetSpec) -> Iterator[Toolchain]:
    """Put in place what lowering and exporting for a target need; restore it at the end.

    Raises
    ------
    UserError
        If a tool is missing; names the command that brings it.
    """
    link = host.linker(spec.triple)
    with ExitStack() as stack:
        device_compiler = None
        if spec.kind == "cuda":
            from .cuda import cuda_toolchain

            device_compiler = stack.enter_context(cuda_toolchain(spec.archs))
        elif spec.kind == "rocm":
            from .rocm import rocm_toolchain

            device_compiler = stack.enter_context(rocm_toolchain(spec.archs))
        yield Toolchain(link, device_compiler)
