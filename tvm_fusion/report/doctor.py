"""What this machine can compile for and run, what is missing, and the command that brings it."""

import platform
import shutil
from collections.abc import Callable
from dataclasses import dataclass

from .._tvm import cuda
from .._tvm.versions import installed
from ..deploy.toolchain import host, nvcc, nvrtc, rocm, rocm_math
from ..device import cuda_devices, hip, host_cpu, rocm_devices
from ..device.cpu_features import vector_extensions
from ..device.table import known_archs
from ..device.tile_permission import need_tiles, refused_tiles
from ..errors import UserError

_EXTRAS = (
    ("onnxruntime", "what `check` compares with; the quantizer of `quantize`", "onnx"),
    ("torch", "torch.export programs as models; torch.compile", "torch"),
    ("xgboost", "MetaSchedule's cost model", "tune"),
)


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    topic: str  # what: stable, such as ``compile for cuda``
    ok: bool  # whether it is there and usable
    found: str  # what was found, or why it cannot be used
    # The command that brings what is missing; None when nothing is missing, or when no command
    # would (a GPU).
    advice: str | None = None


def examine() -> list[Finding]:
    """Look at this machine; compiles nothing for a device and changes nothing.

    Returns
    -------
    list of Finding
        In a fixed order: versions, what runs here, what can be compiled for, optional packages.
    """
    checks: tuple[Callable[[], Finding], ...] = (
        _python, _tvm, _ffi, _c_compiler, _cpu, _cuda_devices, _rocm_devices,
        _compile_cuda, _cudart, _compile_rocm, _rocm_math, _cmake,
    )  # fmt: skip
    return [check() for check in checks] + [_package(*extra) for extra in _EXTRAS]


def _python() -> Finding:
    return Finding("python", True, platform.python_version())


def _tvm() -> Finding:
    found = installed("apache-tvm")
    return Finding("tvm", found is not None, found or "not installed", _unless(found, "tvm_fusion"))


def _ffi() -> Finding:
    found = installed("apache-tvm-ffi")
    return Finding(
        "tvm-ffi", found is not None, found or "not installed", _unless(found, "tvm_fusion")
    )


def _unless(found: object, package: str) -> str | None:
    return None if found else f"pip install {package}"


def _c_compiler() -> Finding:
    try:
        return Finding("c compiler", True, host.require_compiler())
    except UserError as error:
        return Finding("c compiler", False, error.found, host.install_command())


def _cpu() -> Finding:
    cpu = host_cpu()
    bits = f", {cpu.vector_bits}-bit vectors" if cpu.vector_bits else ""
    sets = vector_extensions(cpu.features)
    found = f"{cpu.name}, {cpu.cores} threads{bits} ({' '.join(sets) or 'no vector extension'})"
    if need_tiles(cpu.features) and (refused := refused_tiles()):
        found += f"; this process may not use AMX ({refused})"
    return Finding("run on cpu", True, found)


def _cuda_devices() -> Finding:
    names = [f"{device.name} ({device.arch})" for device in cuda_devices()]
    return Finding("run on cuda", bool(names), ", ".join(names) or "no CUDA device and driver")


def _rocm_devices() -> Finding:
    driver = ", ".join(device.arch for device in rocm_devices())
    there = f"the driver shows {driver}" if driver else "no AMD GPU"
    try:
        library = hip.open_hip()
    except UserError as error:
        advice = error.advice if driver else None
        return Finding("run on rocm", False, f"{there}; {error.found}", advice)
    version = "ROCm {}.{}".format(*hip.hip_version(library))
    names = [f"{device.name} ({device.arch})" for device in hip.hip_devices(library)]
    found = f"{', '.join(names) or f'{there}, and none that HIP shows to this process'}; {version}"
    return Finding("run on rocm", bool(names), found)


def _compile_cuda() -> Finding:
    path, missing = nvcc.find_nvcc(), nvrtc.nvrtc_lacks()
    archs = known_archs("cuda")
    if path and (made := [a for a in archs if a in nvcc.nvcc_architectures(path)]):
        return Finding("compile for cuda", True, f"nvcc ({path}): {', '.join(made)}")
    if not missing:
        return Finding("compile for cuda", True, f"nvrtc: {', '.join(archs)}")
    found = f"neither nvcc nor all packages for nvrtc ({', '.join(missing)} missing)"
    return Finding("compile for cuda", False, found, 'pip install "tvm_fusion[cuda]"')


def _cudart() -> Finding:
    try:
        cuda.load_cudart()
    except UserError as error:
        return Finding("cuda runtime", False, error.found, 'pip install "tvm_fusion[cuda]"')
    return Finding("cuda runtime", True, "libcudart.so.13")


def _compile_rocm() -> Finding:
    lld = rocm.find_lld()
    if lld is None:
        found = "no lld 19 or newer"
        return Finding("compile for rocm", False, found, rocm.INSTALL_LLD)
    return Finding("compile for rocm", True, f"{' '.join(lld)}: {', '.join(known_archs('rocm'))}")


def _rocm_math() -> Finding:
    archs = [arch for arch in known_archs("rocm") if rocm_math.find_ocml(arch)]
    if len(archs) < len(known_archs("rocm")):
        missing = ", ".join(sorted(set(known_archs("rocm")) - set(archs)))
        found = f"none for {missing}: kernels with tan, log1p and the like are refused"
        return Finding("rocm device library", False, found, rocm_math.INSTALL_OCML)
    return Finding("rocm device library", True, f"for {', '.join(archs)}")


def _cmake() -> Finding:
    found = shutil.which("cmake")
    advice = None if found else "apt-get install -y cmake"
    return Finding("cmake", found is not None, found or "not found (`bundle` needs it)", advice)


def _package(name: str, purpose: str, extra: str) -> Finding:
    found = installed(name)
    advice = _unless(found, f'"tvm_fusion[{extra}]"')
    return Finding(name, found is not None, found or f"not installed ({purpose})", advice)
