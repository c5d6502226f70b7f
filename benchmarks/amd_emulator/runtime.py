"""A ROCm runtime for TVM whose device is this process: memory of the host, kernels interpreted.

TVM's own functions are overridden by name: ``device_api.rocm`` is the CPU's, and
``ffi.Module.load_from_bytes.hip`` makes a module of trampolines, one a kernel. Compile before it is
installed: TVM asks a device that is there for its limits, and a CPU says one thread a block.
"""

import ctypes
import itertools
import struct
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

_AXES = ("blockIdx.x", "blockIdx.y", "blockIdx.z", "threadIdx.x", "threadIdx.y", "threadIdx.z")
_DYNAMIC = "tirx.use_dyn_shared_memory"
_INT, _UINT, _FLOAT, _HANDLE, _BOOL = 0, 1, 2, 3, 6  # DLPack's type codes
_FLOATS = {32: "<f", 64: "<d"}
_TRAMPOLINE = """
int __tvm_ffi_{key}(void* self, const TVMFFIAny* args, int32_t n, TVMFFIAny* result) {{
  static TVMFFIObjectHandle f;
  TVMFFIByteArray name = {{"{name}", {length}}};
  if (!f && TVMFFIFunctionGetGlobal(&name, &f)) return -1;
  return TVMFFIFunctionCall(f, (TVMFFIAny*)args, n, result);
}}
"""


@dataclass(frozen=True)
class Signature:
    """A kernel's name, its parameters' types (code, bits, lanes), and what a launch is given."""

    name: str
    types: tuple[tuple[int, int, int], ...]
    launch: tuple[str, ...]


def read_module(blob: bytes) -> tuple[dict[str, Signature], bytes]:
    """Take a serialised HIP module of TVM 0.27 apart: kernels by name, the code object."""
    at = 0

    def number() -> int:
        nonlocal at
        (value,) = struct.unpack_from("<Q", blob, at)
        at += 8
        return value

    def text() -> bytes:
        nonlocal at
        size = number()
        at += size
        return blob[at - size : at]

    def type_() -> tuple[int, int, int]:
        nonlocal at
        at += 4
        return struct.unpack_from("<BBH", blob, at - 4)  # type: ignore[return-value]

    text()  # the format: hsaco
    kernels = {}
    for _ in range(number()):
        key, name = text().decode(), text().decode()
        types = tuple(type_() for _ in range(number()))
        launch = tuple(text().decode() for _ in range(number()))
        extra = number()  # attributes of parameters, an int32 each
        at += 4 * extra
        kernels[key] = Signature(name, types, launch)
    return kernels, text()


def install(compiler: str, reverse: bool = False) -> list[str]:
    """Let this process load and run artifacts for AMD GPUs.

    Parameters
    ----------
    reverse
        Whether waves run from the last to the first.

    Returns
    -------
    list of str
        Names of kernels, growing as they are launched.
    """
    import tvm_ffi

    from tvm_fusion.deploy.runtime import load

    launched: list[str] = []
    count = itertools.count()
    load._open_library("tvm_runtime")

    def load_hip(blob: Any) -> Any:
        kernels, data = read_module(bytes(blob))
        number = next(count)
        names = {key: f"amd_emulator.{number}.{key}" for key in kernels}
        for key, name in names.items():
            function = _kernel(data, kernels[key], launched, reverse)
            tvm_ffi.register_global_func(name, function, override=True)
        return _trampolines(names, compiler)

    invoke = tvm_ffi.get_global_func("vm.builtin.invoke_closure")
    graph = "tvm_fusion.hip_graph."
    for name, call in {  # kernels of graphs are launched one by one
        "run_or_capture": lambda machine, function, args, *_: invoke(machine, function, *args),
        "get_cached_alloc": lambda machine, function, _: invoke(machine, function),
    }.items():
        tvm_ffi.register_global_func(graph + name, call, override=True)
    cpu = tvm_ffi.get_global_func("device_api.cpu")
    tvm_ffi.register_global_func("device_api.rocm", lambda: cpu(), override=True)
    tvm_ffi.register_global_func("ffi.Module.load_from_bytes.hip", load_hip, override=True)
    load._open_device = lambda _folder, found, _rank=0: (
        tvm_ffi.device("rocm", 0),
        found["target"]["archs"][0],
    )
    return launched


def _kernel(
    code: bytes, signature: Signature, launched: list[str], reverse: bool
) -> Callable[..., None]:
    from tests.emulator.amd import run as interpret

    def run(*args: Any) -> None:
        packed = b""
        for type_, value in zip(signature.types, args, strict=False):
            size = type_[1] * type_[2] // 8
            packed = packed.ljust(-(-len(packed) // size) * size, b"\0") + _bytes(type_, value)
        extents = dict(zip(signature.launch, args[len(signature.types) :], strict=True))
        shape = [int(extents.get(axis, 1)) for axis in _AXES]
        launched.append(signature.name)
        dynamic = int(extents.get(_DYNAMIC, 0))
        interpret(code, signature.name, shape[:3], shape[3:], packed, dynamic, reverse=reverse)

    return run


def _bytes(type_: tuple[int, int, int], value: Any) -> bytes:
    code, bits, _ = type_
    if code == _HANDLE:
        address = value.value if isinstance(value, ctypes.c_void_p) else value
        return struct.pack("<Q", address or 0)
    if code == _FLOAT:
        return struct.pack(_FLOATS[bits], value)
    return int(value).to_bytes(bits // 8, "little", signed=code == _INT)


def _trampolines(names: Mapping[str, str], compiler: str) -> Any:
    """Make a library whose functions call global ones."""
    import tvm_ffi
    from tvm_ffi import libinfo

    text = "#include <tvm/ffi/c_api.h>\n" + "".join(
        _TRAMPOLINE.format(key=key, name=name, length=len(name)) for key, name in names.items()
    )
    folder = tempfile.mkdtemp(dir=_libraries().name)
    source, library = f"{folder}/kernels.c", f"{folder}/kernels.so"
    Path(source).write_text(text)
    includes = [f"-I{path}" for path in libinfo.include_paths()]
    command = [compiler, "-shared", "-fPIC", *includes, "-x", "c", source, "-o", library]
    subprocess.run(command, check=True)
    return tvm_ffi.load_module(library)


@cache
def _libraries() -> tempfile.TemporaryDirectory[str]:
    """Make the folder of libraries, which goes with this process.

    The loader tells libraries apart by inodes, which a file system gives anew to the next file.
    """
    return tempfile.TemporaryDirectory()
