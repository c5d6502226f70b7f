"""Registers of a configuration's kernels on AMD GPUs, read back from its machine code.

LLVM allocates registers last, and no model says what it spills. Where kernels of a model do, it is
scheduled again, and each configuration is built alone before it is taken: one that spills failed.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import tvm
from tvm.target import Target
from tvm.tirx.build import codegen_build, split_host_device_mods

from ..._tvm.versions import PIPELINE
from ...core.contract.template import Emission
from ..toolchain.rocm_code import kernels
from ..toolchain.rocm_threads import texts_of

_inspects: ContextVar[bool] = ContextVar("inspects", default=False)


@contextmanager
def inspecting_registers() -> Iterator[None]:
    """Let :func:`spills` look at machine code inside of ``with``, under AMD's toolchain."""
    token = _inspects.set(True)
    try:
        yield
    finally:
        _inspects.reset(token)


def spills(emission: Emission, target: Target) -> str | None:
    """Tell what the kernels of an emission spill.

    Returns
    -------
    str or None
        A clause. None where nothing is spilled, and outside of :func:`inspecting_registers`.
    """
    if target.kind.name != "rocm" or not _inspects.get():
        return None
    for assembly in assemblies(emission, target):
        for kernel in kernels(assembly):
            if kernel.spills:
                return (
                    f"spills {kernel.spilled} registers and keeps {kernel.scratch_bytes} bytes of "
                    "a thread in memory"
                )
    return None


def assemblies(emission: Emission, target: Target) -> Iterator[str]:
    """Compile the kernels of an emission alone, under AMD's toolchain; yields their assembly."""
    functions = {f"kernel{n}": kernel.func for n, kernel in enumerate(emission.kernels)}
    mod = tvm.IRModule({n: f.with_attr("global_symbol", n) for n, f in functions.items()})
    lower, _, finalize = tvm.tirx.get_tir_pipeline(PIPELINE)
    bound = tvm.tirx.transform.BindTarget(target.with_host(target.host or "llvm"))(mod)
    _, devices = split_host_device_mods(lower(bound))
    for device, device_mod in devices.items():
        if device_mod.functions:
            yield texts_of(codegen_build(finalize()(device_mod), device))[1]
