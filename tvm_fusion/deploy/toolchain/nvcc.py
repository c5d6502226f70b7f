"""CUDA source to machine code with an installed CUDA toolkit."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ..._tvm.cuda import find_cuda_file
from ...device import GPUS
from ...device.architecture import listed_archs, virtual_arch


def find_nvcc() -> str | None:
    """Return the path of nvcc: on the PATH, or in the toolkit's usual places."""
    path = shutil.which("nvcc") or find_cuda_file("bin/nvcc")
    return str(path) if path else None


def nvcc_architectures(nvcc: str) -> frozenset[str]:
    """Return the architectures that this nvcc makes code for."""
    done = subprocess.run([nvcc, "--list-gpu-code"], capture_output=True, text=True)
    return listed_archs(done.stdout, GPUS)


def compile_with_nvcc(nvcc: str, source: str, archs: Sequence[str]) -> bytes:
    """Return a fat binary with machine code for each architecture, and nothing else.

    No PTX: a driver would silently compile it for a device that the artifact was not made for. No
    fast math: it flushes denormals and approximates division, which users never asked for.
    """
    with tempfile.TemporaryDirectory() as folder:
        code, binary = Path(folder, "kernels.cu"), Path(folder, "kernels.fatbin")
        code.write_text(source)
        command = [nvcc, "-w", "--fatbin", "-O3", "--std=c++17"]
        command += ["--expt-relaxed-constexpr", "--expt-extended-lambda"]
        command += [f"--threads={min(len(archs), len(os.sched_getaffinity(0)))}"]
        for arch in archs:
            command += ["-gencode", f"arch={virtual_arch(arch)},code={arch}"]
        done = subprocess.run(
            [*command, str(code), "-o", str(binary)], capture_output=True, text=True
        )
        if done.returncode:
            raise RuntimeError(f"nvcc failed:\n{done.stderr[-4000:]}")
        return binary.read_bytes()
