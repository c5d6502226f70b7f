"""The check of a build for AMD GPUs: what would run wrongly is refused, what is slow recorded."""

from __future__ import annotations

from typing import Any

from ...core.decisions import Decision, record
from ...errors import UserError
from ..toolchain.rocm_code import KernelCode, amd_modules, faults, kernels


def check_amd_code(module: Any) -> None:
    """Check the machine code of a built module.

    Parameters
    ----------
    module : tvm.runtime.Module
        Code of the host, which imports that of devices.

    Raises
    ------
    UserError
        Naming a kernel whose code is wrong. Kernels that spill registers, or keep arrays in
        scratch memory, are recorded as decisions instead.
    """
    for one in amd_modules(module):
        assembly = one.inspect_source("asm")
        for name, fault in faults(one.inspect_source("hip"), assembly):
            raise UserError(
                f"kernel '{name}' {fault}, in the code that was generated for the AMD GPU",
                "none that does",
                "report the model, and compile it for another target meanwhile",
            )
        for kernel in kernels(assembly):
            if kernel.spilled or kernel.scratch_bytes or kernel.accumulation_registers:
                record(_out_of_registers(kernel))


def _out_of_registers(kernel: KernelCode) -> Decision:
    sentence = (
        f"Its threads take {kernel.registers} registers, {kernel.accumulation_registers} of them "
        f"accumulation registers; {kernel.spilled} are spilled, {kernel.scratch_bytes} bytes lie "
        "in scratch memory."
    )
    return Decision(kernel.name, "", "refused", "out_of_registers", sentence)
