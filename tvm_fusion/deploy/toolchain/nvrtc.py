"""CUDA source to machine code with NVIDIA's Python packages; no installed toolkit."""

import ctypes
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

from ..._tvm.cuda import find_cuda_file
from ...device.architecture import number

_NVRTC = "lib/libnvrtc.so.13"
_NVFATBIN = "lib/libnvfatbin.so.13"
# TVM 0.27's source includes cuda.h, which has the type of tensor maps, for nvcc alone: cuda.h needs
# headers of the host, which NVRTC does not have.
_TENSOR_MAP_HEADER = "tensor_map.h"
_TENSOR_MAP = "struct alignas(128) CUtensorMap { unsigned long long opaque[16]; };\n"


def nvrtc_lacks() -> list[str]:
    """Return what is missing of the packages of the ``cuda`` extra; empty when all is there."""
    missing = []
    try:
        if find_spec("cuda.bindings.nvrtc") is None:
            missing.append("cuda-bindings")
    except ModuleNotFoundError:
        missing.append("cuda-bindings")
    files = {
        "nvidia-cuda-nvrtc": _NVRTC,
        "nvidia-cuda-runtime": "include/cuda_fp16.h",
        "nvidia-cuda-crt": "include/crt/mma.h",
        "nvidia-cuda-cccl": "include/cccl/cuda/std/cstdint",
        "nvidia-nvfatbin": _NVFATBIN,
    }
    return missing + [package for package, file in files.items() if find_cuda_file(file) is None]


def compile_with_nvrtc(source: str, archs: Sequence[str]) -> bytes:
    """Return machine code: a cubin for one architecture, a fat binary of cubins for several."""
    cubins = [_cubin(source, arch) for arch in archs]
    return cubins[0] if len(cubins) == 1 else _fat_binary(cubins, archs)


def _load(name: str) -> ctypes.CDLL:
    path = find_cuda_file(name)
    if path is None:
        raise RuntimeError(f"{name} went missing")
    return ctypes.CDLL(str(path))


def _load_nvrtc() -> None:
    """Load NVRTC and its builtins, which it looks for by bare name and has no path to.

    cuda-bindings alone searches site-packages only, not every folder on ``sys.path``.
    """
    path = find_cuda_file(_NVRTC)
    for builtins in sorted(path.parent.glob("libnvrtc-builtins.so.13.*")) if path else ():
        ctypes.CDLL(str(builtins))
    _load(_NVRTC)


def _cubin(source: str, arch: str) -> bytes:
    _load_nvrtc()
    from cuda.bindings import nvrtc

    def call(function: Callable[..., Any], *arguments: Any) -> Any:
        status, *results = function(*arguments)
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise RuntimeError(f"{function.__name__}: {status.name}")
        return results[0] if results else None

    header, name = [_TENSOR_MAP.encode()], [_TENSOR_MAP_HEADER.encode()]
    program = call(nvrtc.nvrtcCreateProgram, source.encode(), b"kernels.cu", 1, header, name)
    try:
        headers = find_cuda_file("include/cuda_fp16.h")
        library = find_cuda_file("include/cccl/cuda/std/cstdint")
        if headers is None or library is None:
            raise RuntimeError(f"the CUDA headers went missing: {', '.join(nvrtc_lacks())}")
        options = [
            f"--gpu-architecture={arch}",
            "--std=c++17",
            "-default-device",
            "--device-int128",
            f"--pre-include={_TENSOR_MAP_HEADER}",
            f"-I{headers.parent}",
            f"-I{library.parents[2]}",
        ]
        arguments = [option.encode() for option in options]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(arguments), arguments)
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            log = bytearray(call(nvrtc.nvrtcGetProgramLogSize, program))
            call(nvrtc.nvrtcGetProgramLog, program, log)
            raise RuntimeError(f"NVRTC failed for {arch}:\n{log.decode(errors='replace')[:4000]}")
        cubin = bytearray(call(nvrtc.nvrtcGetCUBINSize, program))
        call(nvrtc.nvrtcGetCUBIN, program, cubin)
        return bytes(cubin)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _fat_binary(cubins: Sequence[bytes], archs: Sequence[str]) -> bytes:
    """Pack cubins with NVIDIA's nvFatbin library, for which cuda-bindings 13.0 has no module."""
    library = _load(_NVFATBIN)
    library.nvFatbinGetErrorString.restype = ctypes.c_char_p

    def call(name: str, *arguments: Any) -> None:
        status = getattr(library, name)(*arguments)
        if status:
            raise RuntimeError(f"{name}: {library.nvFatbinGetErrorString(status).decode()}")

    handle = ctypes.c_void_p()
    flags = (ctypes.c_char_p * 1)(b"-64")
    call("nvFatbinCreate", ctypes.byref(handle), flags, ctypes.c_size_t(len(flags)))
    try:
        for cubin, arch in zip(cubins, archs, strict=True):
            size, digits = ctypes.c_size_t(len(cubin)), number(arch).encode()
            call("nvFatbinAddCubin", handle, cubin, size, digits, b"kernels")
        total = ctypes.c_size_t()
        call("nvFatbinSize", handle, ctypes.byref(total))
        binary = ctypes.create_string_buffer(total.value)
        call("nvFatbinGet", handle, binary)
        return binary.raw
    finally:
        library.nvFatbinDestroy(ctypes.byref(handle))
