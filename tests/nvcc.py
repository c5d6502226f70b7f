"""CUDA's text of kernels, and what ptxas says of many of them that nvcc compiles at once."""

import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
import tvm
import tvm_ffi

from tvm_fusion.device import parse

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
_CALLBACK = "tvm_callback_cuda_compile"


def cuda_source(functions, arch="sm_90a", tir_pipeline="tvm_fusion"):
    """Text of a module with a PrimFunc, or with several by their names; no compiler is called."""
    if isinstance(functions, tvm.tirx.PrimFunc):
        functions = {"main": functions}
    named = {name: func.with_attr("global_symbol", name) for name, func in functions.items()}
    callback = tvm.get_global_func(_CALLBACK, allow_missing=True)
    tvm_ffi.register_global_func(_CALLBACK, lambda *_: b"none", override=True)
    target = parse(f"cuda:{arch}").tvm_target()
    try:
        with target:
            built = tvm.compile(tvm.IRModule(named), target, tir_pipeline=tir_pipeline)
    finally:
        if callback is not None:
            tvm_ffi.register_global_func(_CALLBACK, callback, override=True)
    return built.mod.imports[0].inspect_source()


@dataclass(frozen=True)
class Machine:
    """What ptxas says of a kernel, and its PTX."""

    registers: int
    shared_bytes: int
    stack_bytes: int
    spilled_bytes: int
    ptx: str


def machine_code(functions, arch="sm_90a"):
    """Compile PrimFuncs by their names, each of which is one kernel."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "kernels.cu")
        source.write_text(cuda_source(functions, arch))
        command = ["nvcc", f"-arch={arch}", "-cubin", "-Xptxas=-v", "-keep", source.name]
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
        assert done.returncode == 0, done.stderr
        (ptx,) = Path(folder).glob("*.ptx")
        texts = re.split(r"(?=\.visible \.entry )", ptx.read_text())[1:]
    found = {re.match(r"\.visible \.entry (\w+)_kernel\(", t)[1]: t for t in texts}
    made = {}
    for part in done.stderr.split("Compiling entry function '")[1:]:
        stack, stores, loads = re.search(
            r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", part
        ).groups()
        name = part[: part.index("_kernel'")]
        registers = int(re.search(r"Used (\d+) registers", part)[1])
        shared = sum(map(int, re.findall(r"(\d+) bytes smem", part)))
        spilled = int(stores) + int(loads)
        made[name] = Machine(registers, shared, int(stack), spilled, found[name])
    assert made.keys() == functions.keys()
    return made
