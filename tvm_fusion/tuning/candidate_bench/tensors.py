"""TVM's runtime without its compiler: libraries and tensors; how inputs are drawn and compared."""

import ctypes
import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tvm_ffi

_POOLED = 2  # memory allocator of TVM's virtual machine
_DRAWN = (1 << 20) + 7  # normally distributed numbers; a larger tensor repeats them
_CUDART = "libcudart.so.13"
POISON = 0xFF  # bytes of NaN


class Runtime:
    """The device of a folder of candidates.

    Parameters
    ----------
    kind
        Of the target: "llvm", "cuda" or "rocm", whose device comes with the first library.

    Raises
    ------
    OSError, RuntimeError
        If TVM's runtime for it cannot be loaded.
    """

    def __init__(self, kind: str) -> None:
        names = ["tvm_runtime"]
        if kind == "cuda":
            _load_cudart()
            names.append("tvm_runtime_cuda")
        for name in names:
            ctypes.CDLL(str(_tvm() / "lib" / f"lib{name}.so"), ctypes.RTLD_GLOBAL)
        self.cpu = tvm_ffi.device("cpu", 0)
        self.kind = kind
        self.device = self.cpu if kind == "llvm" else tvm_ffi.device(kind, 0)
        self._allocate = tvm_ffi.get_global_func("runtime.TVMTensorAllocWithScope")
        self._write = tvm_ffi.get_global_func("runtime.TVMTensorCopyFromBytes")
        self._read = tvm_ffi.get_global_func("runtime.TVMTensorCopyToBytes")
        self._sync = tvm_ffi.get_global_func("runtime.Device_StreamSync")
        self._loaded: list[Any] = []  # libraries outlive their functions

    def tensor(self, array: np.ndarray, device: Any = None) -> Any:
        """Copy an array to the device, or to another one."""
        array = np.asarray(array, order="C")  # not ascontiguousarray: it gives scalars an axis
        shape, dtype = tvm_ffi.Shape(array.shape), tvm_ffi.dtype(str(array.dtype))
        tensor = self._allocate(shape, dtype, device or self.device, None)
        self._write(tensor, ctypes.c_void_p(array.ctypes.data), array.nbytes)
        return tensor

    def array(self, tensor: Any) -> np.ndarray:
        """Copy a tensor from the device."""
        array = np.empty(tuple(tensor.shape), numpy_dtype(str(tensor.dtype)))
        self._read(tensor, ctypes.c_void_p(array.ctypes.data), array.nbytes)
        return array

    def poison(self, tensor: Any) -> None:
        """Fill a tensor with bytes of NaN."""
        itemsize = numpy_dtype(str(tensor.dtype)).itemsize
        junk = np.full(int(np.prod(tuple(tensor.shape))) * itemsize, POISON, np.uint8)
        self._write(tensor, ctypes.c_void_p(junk.ctypes.data), junk.nbytes)

    def wait(self) -> None:
        """Wait for all that the default stream of a GPU has to do."""
        if self.device != self.cpu:
            self._sync(self.device, 0)

    def load(self, path: Path) -> tuple[Any, Any]:
        """Load a library; give it and its ``main``."""
        library, machine = self.machine(path)
        return library, machine["main"]

    def machine(self, path: Path) -> tuple[Any, Any]:
        """Load a library; give it and a virtual machine of its functions."""
        library = tvm_ffi.load_module(str(path))
        machine = library["vm_load_executable"]()
        places = [self.device] if self.device == self.cpu else [self.device, self.cpu]
        setup = [n for d in places for n in (d.dlpack_device_type(), d.index, _POOLED)]
        machine["vm_initialization"](*setup)
        self._loaded += [library, machine]
        return library, machine

    def packed(
        self, library: Any, name: str, array: np.ndarray, shape: Sequence[int], dtype: str
    ) -> np.ndarray:
        """Bring a weight into the form that a library's kernels read, by its own function."""
        result = self.tensor(np.empty(shape, numpy_dtype(dtype)), self.cpu)
        library.get_function(name, query_imports=True)(self.tensor(array, self.cpu), result)
        return self.array(result)


class Draw:
    """Draws tensors, alike in every process."""

    def __init__(self, seed: int) -> None:
        self._generator = np.random.default_rng(seed)
        self._normal = self._generator.standard_normal(_DRAWN, dtype="float32")

    def input(self, shape: Sequence[int], dtype: str, rows: int | None = None) -> np.ndarray:
        """Draw normally distributed numbers; integers, which may be indices, are zero.

        With a number of rows, they are the ends of groups of as many each.
        """
        kind = numpy_dtype(dtype)
        if rows is not None:
            return even_ends(shape[0], rows).astype(kind)
        if kind.kind in "iub":
            return np.zeros(shape, kind)
        return self._floats(shape, kind, 0.0, 1.0)

    def weight(self, shape: Sequence[int], dtype: str, one: float, other: float) -> np.ndarray:
        """Draw what stands for a constant.

        Floats have a mean and a standard deviation, integers a least and a greatest value.
        """
        kind = numpy_dtype(dtype)
        if kind.kind in "iub":
            return self._generator.integers(int(one), int(other) + 1, shape).astype(kind)
        return self._floats(shape, kind, one, other)

    def _floats(
        self, shape: Sequence[int], kind: np.dtype, mean: float, deviation: float
    ) -> np.ndarray:
        start = int(self._generator.integers(_DRAWN))
        drawn = (np.roll(self._normal, start) * np.float32(deviation) + np.float32(mean)).astype(
            kind
        )
        return np.resize(drawn, shape)


def even_ends(groups: int, rows: int) -> np.ndarray:
    """Share rows out evenly: where each group ends."""
    return np.arange(1, groups + 1) * rows // groups


def difference(one: np.ndarray, other: np.ndarray) -> tuple[float, float]:
    """Return the largest error and the largest value; infinite where other elements are finite."""
    if one.shape == other.shape and one.tobytes() == other.tobytes():
        return 0.0, 1.0
    wide = "float32" if other.dtype.itemsize < 4 and other.dtype.kind not in "iu" else "float64"
    a, b = one.astype(wide), other.astype(wide)
    finite = np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return float("inf"), 1.0
    scale = float(np.abs(b[finite]).max(initial=0.0))
    error = np.abs(a[finite] - b[finite]).max(initial=0.0)
    return float(error), scale


def numpy_dtype(name: str) -> np.dtype:
    """Find numpy's dtype; names that it does not know are those of ml_dtypes, if installed."""
    if name.startswith(("bfloat", "float8")):
        import ml_dtypes  # noqa: F401
    return np.dtype(name)


def _tvm() -> Path:
    found = importlib.util.find_spec("tvm")
    if found is None or found.origin is None:
        raise RuntimeError("TVM's runtime is not installed: pip install apache-tvm")
    return Path(found.origin).parent


def _load_cudart() -> None:
    """Load CUDA's runtime library, which TVM's asks for by name, from wherever it is."""
    spec = importlib.util.find_spec("nvidia")
    roots = [Path(root, "cu13") for root in (spec and spec.submodule_search_locations) or ()]
    roots += [Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))]
    paths = [root / folder / _CUDART for root in roots for folder in ("lib", "lib64")]
    for path in [Path(_CUDART), *(p for p in paths if p.exists())]:
        try:
            ctypes.CDLL(str(path))
        except OSError:
            continue
        return
