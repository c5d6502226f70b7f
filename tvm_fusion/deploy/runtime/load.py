"""Load an artifact with TVM's runtime library alone: no compiler is mapped."""

import ctypes
import importlib.util
import os
import tempfile
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import tvm_ffi

from ..._tvm.cuda import load_cudart
from ..._tvm.versions import TVM
from ...device import Device, choose_arch, cuda_devices, host_cpu
from ...device.elf import machine_of
from ...device.hip import hip_devices, open_hip
from ...device.probe import machine
from ...device.tile_permission import ADVICE, need_tiles, refused_tiles
from ...errors import UserError, whole_number
from ...threads import choose_threads
from ...words import counted
from .artifact import manifest, weights_file
from .executable import Executable, Library, release_pools
from .tensors import to_tensor, view

_Place = tuple[int, tuple[int, ...], str]  # of a weight: its offset in the file, shape and dtype
_libraries: dict[str, ctypes.CDLL] = {}
# By SHA-256: another module for the same code would cost memory with every load.
_models: weakref.WeakValueDictionary[str, Library] = weakref.WeakValueDictionary()
_opened: dict[str, str] = {}  # the SHA-256 of what was opened first, by path
tvm_ffi.register_error("UserError", UserError)  # of libraries with code for AMD GPUs


class Exportable(Protocol):
    """What :func:`tvm_fusion.compile` returns."""

    def export(self, path: str | os.PathLike[str]) -> Path:
        """Write a folder."""


def load(
    artifact: str | os.PathLike[str] | Exportable,
    *,
    weights: Any = None,
    workers: int | None = None,
) -> Executable:
    """Load an artifact.

    Parameters
    ----------
    artifact : str, os.PathLike or Artifact
        The folder that ``Artifact.export`` or ``tvm-fusion compile -o`` wrote, or what
        :func:`tvm_fusion.compile` returned: no folder is left then.
    weights : str, os.PathLike or mapping of str to array, optional
        Other weights of the same names, shapes and dtypes: those of another artifact's folder, or
        arrays. What a mapping does not name stays the artifact's own.
    workers : int, optional
        How many workers the artifact was compiled for, as a check: they start in any case, this
        process as the first and one process for each other.

    Returns
    -------
    Executable
        Call it with the model's inputs by name.

    Raises
    ------
    UserError
        For a damaged artifact, one made for another device, or weights that do not fit.

    Examples
    --------
    See :func:`tvm_fusion.compile`.
    """
    if not isinstance(artifact, (str, os.PathLike)):
        if not callable(getattr(artifact, "export", None)):
            raise UserError(
                f"an artifact of type {type(artifact).__name__}",
                "an artifact's folder, or what tvm_fusion.compile returned",
            )
        # What is mapped stays when its names go.
        with tempfile.TemporaryDirectory(prefix="tvm_fusion-") as place:
            exported = artifact.export(Path(place, "artifact"))
            return load(exported, weights=weights, workers=workers)
    choose_threads()
    folder = Path(artifact)
    found = manifest.read(folder)
    size = _worker_count(folder, found, weights, workers)
    if size == 1:
        return _load(folder, found, weights)
    from .workers.executable import ParallelExecutable

    open_runtime()
    _check_devices(folder, found, size)
    return ParallelExecutable(folder, found, load_part)


def load_part(folder: str, rank: int, sha256: str) -> Executable:
    """Load a worker's part of an artifact for several.

    Parameters
    ----------
    rank
        The worker's number, and that of its GPU.
    sha256
        Of the manifest that worker 0 read.

    Raises
    ------
    UserError
        As :func:`load`, and where another artifact lies there by now.
    """
    choose_threads()
    found = manifest.read(Path(folder))
    if found["sha256"] != sha256:
        raise UserError(
            f"worker {rank} found another artifact in {folder!r} than worker 0",
            "one artifact for all workers",
            "load it again",
        )
    return _load(Path(folder), found, None, rank)


def open_runtime() -> None:
    """Load TVM's runtime with disco, which workers need before they have an artifact."""
    _open_library("tvm_runtime")
    _open_library("tvm_runtime_extra")


def _worker_count(folder: Path, found: Mapping[str, Any], weights: Any, asked: int | None) -> int:
    """Return how many workers an artifact is for.

    Raises
    ------
    UserError
        For another number than was asked for, and for weights that would have to be split.
    """
    size: int = found.get("workers", {}).get("size", 1)
    if asked is not None and whole_number("workers", asked, 1) != size:
        raise UserError(
            f"workers={asked!r} for artifact {str(folder)!r}, which is made for "
            f"{counted(size, 'worker')}",
            f"workers={size}",
            f"compile it again with workers={asked!r}",
        )
    if size > 1 and weights is not None:
        raise UserError(
            f"other weights for artifact {str(folder)!r}, which is made for "
            f"{counted(size, 'worker')}",
            "its own weights",
            "compile the model again with the other weights",
        )
    return size


def _check_devices(folder: Path, found: Mapping[str, Any], size: int) -> None:
    """Check that each worker has a GPU of its own, and NCCL, before any is started."""
    kind = found["target"]["kind"]
    if kind == "llvm":
        return
    made_for = f"artifact {str(folder)!r} is made for {found['target']['text']}"
    count = len(_gpus(kind, made_for))
    if count < size:
        raise UserError(
            f"{made_for} on {counted(size, 'worker')}, and this machine has "
            f"{counted(count, 'visible GPU')}",
            "a GPU for each worker",
        )
    from .workers import nccl

    nccl.library()


def _load(folder: Path, found: dict[str, Any], weights: Any, rank: int = 0) -> Executable:
    """Load what a worker, or the only one, has of an artifact."""
    manifest.verify(folder, found, [manifest.LIBRARY])
    _check_version(folder, found["versions"]["apache-tvm"])
    device, arch = _open_device(folder, found, rank)
    found = manifest.of_worker(manifest.of_architecture(found, arch), arch, rank)
    _check_packed_functions(folder, found)
    release_pools()
    library = _open_model(folder, found["files"][manifest.LIBRARY]["sha256"], device)
    arrays = weights_file.read(folder, found)
    given: dict[str, Any] = {**weights_file.replacements(found, weights, arch)}
    if not isinstance(weights, (str, os.PathLike)):  # another artifact's are packed already
        for name in given:
            if "packed" in found["weights"][name]:
                given[name] = _packed(library.module, found["weights"][name], given[name])
    # What several names share in the file they share on the device, too.
    own = {name: array for name, array in arrays.items() if name not in given}
    places = {
        name: (found["weights"][name]["offset"], array.shape, str(array.dtype))
        for name, array in own.items()
    }
    shared = _on_device({place: arrays[name] for name, place in places.items()}, device)
    tensors = {name: shared[place] for name, place in places.items()}
    tensors |= {name: to_tensor(array, device) for name, array in given.items()}
    return Executable(found, library, device, tensors)


def _on_device(arrays: Mapping[_Place, np.ndarray], device: tvm_ffi.Device) -> dict[_Place, Any]:
    """Bring weights to a device; those that lie in another one in the file do so there, too."""
    found: dict[_Place, Any] = {}
    whole, begin, end = None, 0, 0
    for place in sorted(arrays, key=lambda p: (p[0], -arrays[p].nbytes)):
        array = arrays[place]
        if device.type != "cpu" and begin < place[0] + array.nbytes <= end:
            found[place] = view(whole, array.shape, str(array.dtype), place[0] - begin)
        else:
            found[place] = whole = to_tensor(array, device)
            begin, end = place[0], place[0] + array.nbytes
    return found


def _open_model(folder: Path, sha256: str, device: tvm_ffi.Device) -> Library:
    """Load a model's library of a known hash, once at a time in this process."""
    known = _models.get(sha256)
    if known is not None:
        return known
    place = os.path.abspath(folder / manifest.LIBRARY)
    try:
        with _unseen_name(place, sha256) as name:
            # Closed with its last user; a GPU may still run its kernels then.
            library = tvm_ffi.load_module(name, keep_module_alive=device.type != "cpu")
        library.get_function("vm_load_executable")
    except (RuntimeError, ValueError, AttributeError) as error:
        lines = str(error).strip().splitlines() or ["no message"]
        raise UserError(
            f"{manifest.LIBRARY} of artifact {str(folder)!r} does not load ({lines[-1]})",
            "a library that `tvm-fusion compile` wrote",
            manifest.AGAIN,
        ) from error
    return _models.setdefault(sha256, Library(library))


@contextmanager
def _unseen_name(place: str, sha256: str) -> Iterator[str]:
    """Name a library so that the dynamic loader opens it.

    The loader takes a name that it has seen for the library that it opened then, also if another
    artifact was exported over it since.
    """
    if _opened.setdefault(place, sha256) == sha256:
        yield place
        return
    with tempfile.TemporaryDirectory(prefix="tvm_fusion-") as folder:
        name = Path(folder, f"{sha256}.so")
        name.symlink_to(place)
        yield str(name)


def _packed(library: Any, entry: Mapping[str, Any], array: Any) -> Any:
    """Bring a weight into the form that kernels read, on the host."""
    cpu = tvm_ffi.device("cpu", 0)
    stored = to_tensor(np.empty(entry["packed"]["shape"], entry["dtype"]), cpu)
    pack = library.get_function(entry["packed"]["function"], query_imports=True)
    pack(to_tensor(array, cpu), stored)
    return stored


def _check_version(folder: Path, made_with: str) -> None:
    """Refuse another TVM's bytecode and kernels, whose calls this runtime may not understand."""
    if made_with != TVM:
        raise UserError(
            f"artifact {str(folder)!r} was made by apache-tvm {made_with}",
            f"apache-tvm {TVM}",
            "compile the model again",
        )


def _check_packed_functions(folder: Path, found: Mapping[str, Any]) -> None:
    """Load the libraries that have what the code calls; name what is nowhere."""
    for name in found.get("libraries", ()):
        _open_library(name)
    for name in found.get("packed_functions", ()):
        if tvm_ffi.get_global_func(name, allow_missing=True) is None:
            raise UserError(
                f"artifact {str(folder)!r} calls the packed function {name!r}, which this process "
                "does not have",
                "a process that has registered it",
                "load the library that registers it first",
            )


def _open_device(
    folder: Path, found: Mapping[str, Any], rank: int = 0
) -> tuple[tvm_ffi.Device, str]:
    """Load a target's runtime; return a worker's device and the architecture that is best there.

    Raises
    ------
    UserError
        If the target's code cannot run here.
    """
    target = found["target"]
    made_for = f"artifact {str(folder)!r} is made for {target['text']}"
    _open_library("tvm_runtime")
    if target["kind"] == "llvm":
        return tvm_ffi.device("cpu", 0), _choose_cpu(made_for, found)
    devices = _gpus(target["kind"], made_for)
    host = machine_of(folder / manifest.LIBRARY)
    if host is not None and host != machine():
        advice = f"this CPU is {machine()}: compile it on such a machine"
        raise UserError(f"{made_for} on a host whose CPU is {host}", None, advice)
    here = devices[rank].arch
    arch = choose_arch(target["archs"], here)
    if arch is None:
        raise UserError(made_for, None, f"this device is {here}: compile it for that")
    if target["kind"] == "cuda":
        load_cudart()
        _open_library("tvm_runtime_cuda")
    return tvm_ffi.device(target["kind"], rank), arch


def _gpus(kind: str, made_for: str) -> tuple[Device, ...]:
    """List the GPUs of a kind that this process may use; raises UserError if there are none."""
    if kind == "cuda":
        name, devices = "CUDA device", cuda_devices()
    elif kind != "rocm":
        raise UserError(made_for, "a CPU, CUDA devices or AMD GPUs", manifest.AGAIN)
    else:
        try:
            name, devices = "AMD GPU", hip_devices(open_hip())
        except UserError as error:
            raise UserError(
                f"{made_for}, but {error.found}", error.expected, error.advice
            ) from None
    if not devices:
        raise UserError(
            made_for, None, f"this machine has no visible {name}: run it on one that has"
        )
    return devices


def _choose_cpu(made_for: str, found: Mapping[str, Any]) -> str:
    """Choose the highest architecture whose instruction sets this CPU and this process have."""
    if found["target"]["machine"] != machine():
        raise UserError(made_for, None, f"this CPU is {machine()}: compile it for this machine")
    here, refused = set(host_cpu().features), None
    for arch in reversed(found["target"]["archs"]):
        features = manifest.of_architecture(found, arch)["target"]["features"]
        lacking = sorted(set(features) - here)
        if lacking:
            continue
        if need_tiles(features):
            refused = refused or refused_tiles()
        if not need_tiles(features) or not refused:
            return arch
    if refused:
        raise UserError(
            f"{made_for} with AMX, whose tile registers this process may not use ({refused})",
            None,
            ADVICE,
        )
    without = f"this CPU is {machine()} without {', '.join(lacking)}"
    raise UserError(made_for, None, f"{without}: compile it for this machine")


def _open_library(name: str) -> None:
    """Load one of the wheel's runtime libraries, globally, unless it is there already."""
    if name in _libraries:
        return
    found = importlib.util.find_spec("tvm")
    if found is None or found.origin is None:
        raise UserError("TVM is not installed", "apache-tvm", "run `pip install tvm_fusion`")
    path = Path(found.origin).parent / "lib" / f"lib{name}.so"
    try:
        _libraries[name] = ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise UserError(
            f"{path.name} does not load ({error})", "a complete CUDA runtime"
        ) from error
