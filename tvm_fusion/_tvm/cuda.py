"""TVM 0.27 stores CUDA source instead of machine code where no NVIDIA driver is installed.

`libtvm_runtime_cuda.so` registers the module class that holds compiled kernels, and needs
`libcuda.so.1` (the driver) and `libcudart.so.13` to be loaded at all. Without it TVM falls back to
a class that keeps the source and compiles it on the receiver's machine, through Python. The dynamic
linker is satisfied by any library of the right name that is already in the process, before or after
`import tvm`, so a stand-in for the driver is enough to compile: building calls none of it.
"""

import ctypes
import functools
import os
import subprocess
import tempfile
from pathlib import Path

from ..errors import UserError

#: What `libtvm_runtime_cuda.so` takes from the driver, and what a probe of the driver asks first.
DRIVER_SYMBOLS = (
    "cuDeviceGetName",
    "cuFuncSetAttribute",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuInit",
    "cuLaunchKernelEx",
    "cuModuleGetFunction",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuTensorMapEncodeTiled",
)
_NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE

_CUDART = "libcudart.so.13"


def find_cuda_file(name: str) -> Path | None:
    """Return a file of CUDA 13 by its path under a toolkit, such as ``lib/libcudart.so.13``.

    Looks in NVIDIA's Python packages, then in ``CUDA_HOME``, ``CUDA_PATH`` and ``/usr/local/cuda``.
    """
    from importlib.util import find_spec

    spec = find_spec("nvidia")
    roots = [Path(root, "cu13") for root in (spec and spec.submodule_search_locations) or ()]
    roots += [Path(os.environ[key]) for key in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(key)]
    roots += [Path("/usr/local/cuda"), *sorted(Path("/usr/local").glob("cuda-13*"))]
    folder, _, rest = name.partition("/")
    folders = ["lib", "lib64"] if folder == "lib" else [folder]
    paths = (root / f / rest for root in roots for f in folders)
    return next((path for path in paths if path.exists()), None)


def cuda_runtime_registered() -> bool:
    """Tell whether this process holds TVM's class of compiled CUDA modules."""
    import tvm_ffi

    return tvm_ffi.get_global_func("ffi.Module.create.cuda", allow_missing=True) is not None


@functools.cache
def load_cudart() -> ctypes.CDLL:
    """Load CUDA's own runtime library, once, from wherever it is; needs no TVM.

    Raises
    ------
    UserError
        If it is missing.
    """
    try:
        return ctypes.CDLL(_CUDART)
    except OSError:
        path = find_cuda_file(f"lib/{_CUDART}")
        if path is None:
            raise UserError(
                f"{_CUDART} was not found",
                "CUDA 13's runtime library",
                'run `pip install "tvm_fusion[cuda]"`',
            ) from None
        return ctypes.CDLL(str(path))


def load_cuda_runtime(c_compiler: str | None) -> None:
    """Load TVM's CUDA runtime into this process, with a stand-in where the driver is missing.

    Parameters
    ----------
    c_compiler
        Compiles the stand-in; without it a missing driver is an error.

    Raises
    ------
    UserError
        If the CUDA 13 runtime library is missing.
    """
    import tvm
    from tvm.base import _LOADED_LIBS

    if cuda_runtime_registered():
        return
    load_cudart()
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        if c_compiler is None:
            raise UserError("libcuda.so.1 was not found", "an NVIDIA driver") from None
        _load_driver_stand_in(c_compiler)
    library = Path(tvm.__file__).parent / "lib" / "libtvm_runtime_cuda.so"
    _LOADED_LIBS["tvm_runtime_cuda"] = ctypes.CDLL(str(library))
    if not cuda_runtime_registered():
        raise RuntimeError(f"{library} registered no CUDA module class")


def _load_driver_stand_in(c_compiler: str) -> None:
    source = "".join(f"int {name}(void) {{ return {_NO_DEVICE}; }}\n" for name in DRIVER_SYMBOLS)
    # Once mapped, the file is no longer needed.
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "libcuda.so.1"))
        command = [c_compiler, "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-x", "c", "-"]
        subprocess.run([*command, "-o", path], input=source, text=True, check=True)
        ctypes.CDLL(path)
