"""HIP whose GPUs are this process (``hip.cc``), for artifacts that run without an AMD GPU."""

import ctypes
import subprocess
from pathlib import Path

SOURCE, NAME = Path(__file__).with_name("hip.cc"), "libamdhip64.so.7"
_LAUNCHER = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p,
    ctypes.POINTER(ctypes.c_uint * 3), ctypes.POINTER(ctypes.c_uint * 3), ctypes.c_uint,
    ctypes.c_void_p, ctypes.c_size_t,
)  # fmt: skip


def build(compiler, folder):
    """Compile it as the library that deploy/rocm opens."""
    path = Path(folder, NAME)
    options = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    command = [compiler, *options, f"-Wl,-soname,{NAME}", str(SOURCE), "-o", str(path), "-ldl"]
    subprocess.run(command, check=True)
    return path


class FakeHip:
    """The process's HIP from now on; the library's ``fake_...`` functions without the prefix.

    Parameters
    ----------
    path : Path
        What :func:`build` returned.
    """

    def __init__(self, path):
        self.path = path
        self._library = ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
        for name in ("fake_log", "fake_complaint"):
            getattr(self._library, name).restype = ctypes.c_char_p
        for name in (
            "allocations",
            "launches",
            "graph_launches",
            "captures",
            "deepest",
            "modules",
            "pending",
        ):
            getattr(self._library, f"fake_{name}").restype = ctypes.c_long
        self._library.fake_owns.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        names = (
            "Py_IsInitialized",
            "PyGILState_Check",
            "PyEval_SaveThread",
            "PyEval_RestoreThread",
        )
        functions = (ctypes.cast(getattr(ctypes.pythonapi, n), ctypes.c_void_p) for n in names)
        self._library.fake_set_python(*functions)
        self._launcher = None
        self.error = None

    def __getattr__(self, name):
        return getattr(self._library, f"fake_{name}")

    def configure(self, arch="gfx942", devices=1, memory=1 << 30, version=60443483):
        self._library.fake_configure(arch.encode(), devices, ctypes.c_size_t(memory), version)

    def fail(self, function, status):
        """Let the next call of a function of HIP return an error."""
        self._library.fake_fail(function.encode(), status)

    def log(self):
        """Names of the kernels that ran, in order."""
        return self._library.fake_log().decode().split()

    def memory(self):
        """Addresses and sizes of what is allocated on the GPU."""
        room = self.allocations()
        addresses, sizes = (ctypes.c_void_p * room)(), (ctypes.c_size_t * room)()
        self._library.fake_memory(addresses, sizes, ctypes.c_long(room))
        return list(zip(addresses, sizes, strict=True))

    def complaint(self):
        return self._library.fake_complaint().decode()

    def run_kernels_by(self, run):
        """Let ``run(code, name, grid, block, shared, arguments)`` run kernels; bytes and tuples.

        What it raises is a failed launch, and stays in ``error``.
        """

        def launch(code, code_bytes, name, grid, block, shared, arguments, argument_bytes):
            try:
                run(
                    ctypes.string_at(code, code_bytes), name.decode(), tuple(grid.contents),
                    tuple(block.contents), shared, ctypes.string_at(arguments, argument_bytes),
                )  # fmt: skip
            except Exception as error:  # guard: C calls this
                self.error = error
                return 1
            return 0

        self._launcher = _LAUNCHER(launch)
        self._library.fake_set_launcher(self._launcher)
