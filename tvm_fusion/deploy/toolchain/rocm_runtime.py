"""The runtime of AMD GPUs that artifacts bring along, since TVM's wheel has none.

Its sources (``deploy/rocm``) are compiled against the headers of TVM's wheel and linked into every
library with AMD code, where they register AMD's devices and code objects with TVM's runtime. They
open HIP's runtime library when a model runs; nothing of ROCm is needed to compile them.
"""

import functools
import subprocess
import tempfile
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import tvm
import tvm_ffi

from ...errors import UserError
from .host import require_compiler

SOURCES = Path(__file__).parents[1] / "rocm"
#: Behind the linker's command: the functions that a library registered outlive whoever loaded it.
LINK_OPTIONS = ("-lstdc++", "-Wl,-z,nodelete")


def rocm_runtime() -> bytes:
    """Compile the runtime.

    Returns
    -------
    bytes
        An object file.

    Raises
    ------
    UserError
        If the compiler does not compile C++17.
    """
    return _job(require_compiler()).result()


def begin_rocm_runtime() -> None:
    """Begin to compile it, while the caller goes on; :func:`rocm_runtime` waits for the end."""
    _job(require_compiler())


@functools.cache
def _job(compiler: str) -> Future[bytes]:
    pool = ThreadPoolExecutor(1)
    job = pool.submit(_object_file, compiler)
    pool.shutdown(wait=False)
    return job


def _object_file(compiler: str) -> bytes:
    # As one source: the compiler reads TVM's headers once.
    text = "".join(f'#include "{source.name}"\n' for source in sorted(SOURCES.glob("*.cc")))
    packages = [Path(str(one.__file__)).with_name("include") for one in (tvm, tvm_ffi)]
    includes = [word for path in (SOURCES / "support", *packages) for word in ("-isystem", path)]
    options = ["-std=c++17", "-O1", "-fPIC", "-fvisibility=hidden", "-I", SOURCES, *includes]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "rocm.o")
        command = [compiler, "-x", "c++", *map(str, options), "-c", "-", "-o", str(path)]
        done = subprocess.run(command, input=text, capture_output=True, text=True)
        if done.returncode == 0:
            return path.read_bytes()
    lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    reason = next((line for line in lines if "error" in line), lines[-1])
    raise UserError(
        f"the C++ compiler {compiler} cannot compile the runtime of AMD GPUs ({reason})",
        "a compiler of C++17 with the C++ library's headers, such as g++",
        "install g++, or name another one by the environment variable CXX",
    )
