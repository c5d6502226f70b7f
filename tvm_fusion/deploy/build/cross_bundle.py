"""What a bundle for another CPU family is built with: its compiler, and TVM's wheels for it."""

from __future__ import annotations

import zipfile
from importlib.metadata import version
from pathlib import Path

from ...device.elf import FAMILIES
from ...device.probe import machine
from ...errors import UserError
from ..toolchain.host import find_compiler, install_command

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
