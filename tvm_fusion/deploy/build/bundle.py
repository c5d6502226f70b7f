"""A folder that runs an artifact without Python: the runner and interface in C++, TVM's runtime.

The sources of the runner are in ``cpp``; CMake builds them against the headers and libraries of the
installed apache-tvm and apache-tvm-ffi packages. What is copied needs of the other machine a C
library at least as new as here, for CUDA a driver, for AMD GPUs ROCm.
"""

import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from importlib.metadata import version
from pathlib import Path

from ..._tvm.cuda import find_cuda_file
from ...core.progress import report
from ...device.elf import FAMILIES, machine_of
from ...device.probe import machine
from ...errors import UserError
from ..runtime.artifact import manifest
from ..toolchain.host import find_compiler, install_command
from .artifact import check_writable, temporary_beside

PACKAGES = ("apache-tvm", "apache-tvm-ffi")


def cross_settings(made_for: str | None, wheels: Path | None, folder: Path) -> dict[str, str]:
    """Tell CMake how to build for an artifact's CPU family.

    Parameters
    ----------
    made_for
        The family of the artifact's library; None for that of this machine.
    wheels
        Folder with the wheels of the installed versions of TVM and its ffi for that family.
    folder
        Where they are unpacked, as long as CMake runs.

    Returns
    -------
    dict of str to str
        CMake's variables; none for this machine without ``wheels``.

    Raises
    ------
    UserError
        For another family than this machine's without wheels, and for a missing compiler or wheel.
    """
    here = machine()
    family = made_for or here
    settings = {}
    if family != here:
        found = (
            f"the artifact is for {family}, and the runtime libraries of TVM that are installed "
            f"here for {here}"
        )
        if family not in FAMILIES:
            raise UserError(found, f"an artifact for {' or '.join(FAMILIES)}")
        if wheels is None:
            raise UserError(
                found,
                f"--wheels FOLDER with those for {family}",
                f"run `{_download(family)}`, or bundle it on a machine that is {family}",
            )
        triple = f"{family}-linux-gnu"
        compiler = find_compiler(triple)
        if compiler is None or not compiler.endswith("++"):
            raise UserError(
                f"there is no C++ compiler for {family}",
                f"{triple}-g++",
                f"run `{install_command(triple)}`",
            )
        settings = {
            "CMAKE_SYSTEM_NAME": "Linux",
            "CMAKE_SYSTEM_PROCESSOR": family,
            "CMAKE_CXX_COMPILER": compiler,
        }
    if wheels is not None:
        for package in PACKAGES:
            _unpack(package, family, wheels, folder)
        settings |= {"TVM": str(folder / "tvm"), "FFI": str(folder / "tvm_ffi")}
    return settings


def _download(family: str) -> str:
    named = " ".join(f"{package}=={version(package)}" for package in PACKAGES)
    return (
        f"pip download --no-deps --only-binary :all: --platform manylinux_2_28_{family} "
        f"--dest wheels {named}"
    )


def _unpack(package: str, family: str, wheels: Path, folder: Path) -> None:
    """Unpack the headers and the runtime libraries of a wheel; the compiler is not needed."""
    name = f"{package.replace('-', '_')}-{version(package)}-*{family}.whl"
    found = sorted(wheels.glob(name))
    if not found:
        raise UserError(
            f"{str(wheels)!r} has no {name}",
            f"TVM's wheels for {family}",
            f"run `{_download(family)}`",
        )
    try:
        with zipfile.ZipFile(found[0]) as archive:
            needed = [n for n in archive.namelist() if "/lib/" in n or "/include/" in n]
            archive.extractall(folder, [n for n in needed if "compiler" not in n])
    except (OSError, zipfile.BadZipFile) as error:
        raise UserError(f"{str(found[0])!r} is no wheel ({error})", "a wheel") from error


RUNNER, MODEL = "tvm_fusion_run", "model"
SOURCES = Path(__file__).parents[1] / "cpp"


def bundle(artifact: Path, folder: Path, wheels: Path | None = None) -> Path:
    """Build the runner and the C++ interface, and put them next to a copy of an artifact.

    Parameters
    ----------
    artifact
        What `tvm-fusion compile` wrote.
    folder
        A folder that does not exist yet, or is empty. It appears as a whole or not at all.
    wheels
        Folder of TVM's wheels for the artifact's CPU family, where that is not this machine's.

    Returns
    -------
    Path
        The folder: ``tvm_fusion_run``, ``lib``, ``include``, ``model``; a prefix for CMake's
        ``find_package(tvm_fusion)``.

    Raises
    ------
    UserError
        For no artifact or a changed one, one for CPUs of another family than this machine's without
        a cross compiler and wheels, a folder that has something in it, a machine without CMake and
        a C++ compiler, or without CUDA's runtime library for an artifact that needs it.
    """
    found = manifest.read(artifact)
    manifest.verify(artifact, found)
    target = folder.resolve()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UserError(f"{str(folder)!r} exists", "a new folder", "name another one")
    check_writable(target.parent)
    if own := found.get("packed_functions"):
        raise UserError(
            f"the artifact calls the packed function {own[0]!r}, which the runner does not have",
            "an artifact that needs TVM's runtime libraries alone",
            "load it in a program that registers the function",
        )
    family = machine_of(artifact / manifest.LIBRARY)
    with tempfile.TemporaryDirectory() as unpacked:
        settings = _settings(found) | cross_settings(family, wheels, Path(unpacked))
        target.parent.mkdir(parents=True, exist_ok=True)
        staging = temporary_beside(target)
        try:
            build_runner(staging, settings)
            shutil.copytree(artifact, staging / MODEL)
            if target.exists():
                target.rmdir()
            staging.rename(target)
        except OSError as error:
            raise UserError(f"cannot write {str(folder)!r} ({error.strerror or error})") from error
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    return folder


def build_runner(folder: Path, settings: dict[str, str] | None = None) -> None:
    """Build the runner and install it, with the libraries that it needs, into a folder.

    Raises
    ------
    UserError
        With the last line of CMake's complaint.
    """
    cmake = shutil.which("cmake")
    if cmake is None:
        raise UserError(
            "there is no cmake", "CMake 3.18 and a C++17 compiler", "install cmake and g++"
        )
    defined = [
        f"-D{k}={v}" for k, v in {"Python_EXECUTABLE": sys.executable, **(settings or {})}.items()
    ]
    with tempfile.TemporaryDirectory() as scratch:
        report("configuring the runner")
        _call(cmake, "-S", str(SOURCES), "-B", scratch, *defined)
        report("compiling the runner")
        _call(cmake, "--build", scratch, "--parallel", stage="compiling the runner")
        report("copying libraries")
        _call(cmake, "--install", scratch, "--prefix", str(folder))


def _settings(found: dict) -> dict[str, str]:
    """Tell CMake what the target needs besides TVM's runtime."""
    kind = found["target"]["kind"]
    if kind != "cuda":  # the runtime of AMD GPUs is in the artifact
        return {}
    cudart = find_cuda_file("lib/libcudart.so.13")
    if cudart is None:
        raise UserError(
            "CUDA's runtime library is not installed",
            "libcudart.so.13",
            "run `pip install 'tvm_fusion[cuda]'`",
        )
    return {"CUDART": str(cudart)}


def _call(*command: str, stage: str = "") -> None:
    """Run CMake; of a stage, tell how many percent it says are done."""
    lines = []
    pipe, merged = subprocess.PIPE, subprocess.STDOUT
    with subprocess.Popen(command, stdout=pipe, stderr=merged, text=True) as running:
        for line in running.stdout or ():
            lines += [line.strip()] if line.strip() else []
            if stage and (percent := re.match(r"\[ *(\d+)%\]", line)):
                report(stage, int(percent[1]), 100)
    if running.returncode:
        errors = [line for line in lines if "rror" in line] or lines or ["no message"]
        raise UserError(
            f"the runner cannot be built ({errors[0]})",
            "CMake 3.18 and a C++17 compiler",
            "install cmake and g++",
        )
