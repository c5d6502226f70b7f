"""What ptxas says of kernels: registers, shared memory, spills. Many are compiled at once."""

import math
import re
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import tvm
import tvm_ffi
from tvm import DataType, tirx
from tvm.tirx.build import codegen_build, split_host_device_mods

from tvm_fusion._tvm.ir.structural import structural_walk
from tvm_fusion.deploy.toolchain.nvcc import find_nvcc
from tvm_fusion.device import TargetSpec
from tvm_fusion.errors import UserError

_CALLBACK = "tvm_callback_cuda_compile"
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")


@dataclass(frozen=True)
class MachineCode:
    """What one kernel takes."""

    registers: int  # of a thread
    # Bytes of a block that the kernel declares, and that its launch requests.
    static_shared: int
    dynamic_shared: int
    # Bytes of a thread's frame, and of loads and stores of spilled registers.
    stack: int
    spills: int

    @property
    def shared(self) -> int:
        """Shared memory of a block."""
        return self.static_shared + self.dynamic_shared


def machine_code(
    functions: Mapping[str, tirx.PrimFunc], spec: TargetSpec
) -> dict[str, list[MachineCode]]:
    """Compile functions by their names; each may launch several kernels.

    Parameters
    ----------
    functions
        Scheduled; a name is an identifier without underscores.
    spec
        A CUDA device.
    """
    nvcc = find_nvcc()
    if nvcc is None:
        raise UserError("nvcc was not found", advice="install a CUDA toolkit")
    source, dynamic = _source(functions, spec)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "kernels.cu").write_text(source)
        command = [nvcc, "-w", "-O3", "--std=c++17", "--expt-relaxed-constexpr"]
        command += [f"-arch={spec.archs[0]}", "-cubin", "-Xptxas=-v", "kernels.cu"]
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    if done.returncode:
        raise RuntimeError(f"nvcc failed:\n{done.stderr[-4000:]}")
    found: dict[str, list[MachineCode]] = defaultdict(list)
    for part in done.stderr.split("Compiling entry function '")[1:]:
        name = part[: part.index("'")]
        stack, stores, loads = map(int, _FRAME.search(part).groups())
        (registers,) = re.findall(r"Used (\d+) registers", part)
        static = sum(map(int, re.findall(r"(\d+) bytes smem", part)))
        code = MachineCode(int(registers), static, dynamic[name], stack, stores + loads)
        found[name.partition("_")[0]].append(code)
    return dict(found)


def _source(functions: Mapping[str, tirx.PrimFunc], spec: TargetSpec) -> tuple[str, dict[str, int]]:
    """Generate CUDA source, and count the shared memory that launches request, by kernel."""
    target = spec.tvm_target()
    mod = tvm.IRModule({n: f.with_attr("global_symbol", n) for n, f in functions.items()})
    lower, _, finalize_device = tirx.get_tir_pipeline("tvm_fusion")
    previous = tvm.get_global_func(_CALLBACK, allow_missing=True)
    tvm_ffi.register_global_func(_CALLBACK, lambda *_: b"none", override=True)
    try:
        with target:
            bound = tirx.transform.BindTarget(target.with_host(target.host))(mod)
            _, device_mods = split_host_device_mods(lower(bound))
            ((device, device_mod),) = device_mods.items()
            built = codegen_build(finalize_device()(device_mod), device)
    finally:
        if previous is not None:
            tvm_ffi.register_global_func(_CALLBACK, previous, override=True)
    named = {str(f.attrs["global_symbol"]): f for f in device_mod.functions.values()}
    return built.inspect_source(), {name: _dynamic_bytes(func) for name, func in named.items()}


def _dynamic_bytes(func: tirx.PrimFunc) -> int:
    found: list[tirx.AllocBuffer] = []
    structural_walk(func.body, (tirx.AllocBuffer, found.append))
    buffers = [stmt.buffer for stmt in found if stmt.buffer.scope() == "shared.dyn"]
    return sum(math.prod(map(int, b.shape)) * DataType(str(b.dtype)).itemsize for b in buffers)
