"""The C compiler that links an artifact's host code into a shared library."""

import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...errors import UserError

# The order in which TVM itself looks.
_NAMES = ("g++", "gcc", "clang++", "clang", "c++", "cc")


def find_compiler(triple: str | None = None) -> str | None:
    """Return the path of a C or C++ compiler, or None.

    Parameters
    ----------
    triple
        Machine to link for, such as ``aarch64-linux-gnu``; this one by default, where the
        environment variables ``CXX`` and ``CC`` come first, as in TVM.
    """
    if triple:
        return shutil.which(f"{triple}-g++") or shutil.which(f"{triple}-gcc")
    named = os.environ.get("CXX") or os.environ.get("CC")
    return next(filter(None, map(shutil.which, [named] if named else _NAMES)), None)


def install_command(triple: str | None = None) -> str:
    """Return the apt line that brings a compiler which :func:`find_compiler` finds."""
    # g++ and not gcc: it depends on the C library's start files, which gcc only recommends.
    package = f"g++-{triple.replace('_', '-')}" if triple else "g++"
    return f"apt-get install -y {package}"


def require_compiler(triple: str | None = None) -> str:
    """Return the path of a compiler that really links a shared library.

    Raises
    ------
    UserError
        If there is none, or it cannot link; names the apt line.
    """
    path = find_compiler(triple)
    machine = f" for {triple}" if triple else ""
    if path is None:
        named = None if triple else os.environ.get("CXX") or os.environ.get("CC")
        found = f"the C compiler {named!r} that CXX or CC names" if named else "a C compiler"
        raise UserError(
            f"{found}{machine} was not found, and TVM links every artifact with one",
            advice=f"run `{install_command(triple)}`",
        )
    complaint = _cannot_link(path)
    if complaint is not None:
        raise UserError(
            f"the C compiler {path} cannot link a shared library ({complaint})",
            advice=f"run `{install_command(triple)}`",
        )
    return path


@functools.cache
def _cannot_link(compiler: str) -> str | None:
    with tempfile.TemporaryDirectory() as folder:
        command = [compiler, "-shared", "-fPIC", "-x", "c", "-", "-o", str(Path(folder, "t.so"))]
        done = subprocess.run(
            command, input="int f(void) { return 0; }\n", capture_output=True, text=True
        )
    if done.returncode == 0:
        return None
    lines = done.stderr.strip().splitlines()
    return lines[-1] if lines else f"exit code {done.returncode}"


def linker(triple: str | None = None) -> Callable[..., Any]:
    """Return the function that ``export_library`` takes as ``fcompile``."""
    compiler = require_compiler(triple)
    from tvm.support import cc
    from tvm.target import codegen

    # TVM asks `g++ -dumpmachine` while it is imported, which is wrong for another machine.
    return cc.cross_compiler(
        compiler,
        get_target_triple=lambda: triple or str(codegen.llvm_get_system_triple()),
    )


def thread_team(triple: str | None = None) -> bytes:
    """Compile what kernels' parallel loops run on: an object file for every CPU library.

    Raises
    ------
    UserError
        If the compiler does not compile C.
    """
    return _object_file(require_compiler(triple), "thread_team.c")


def tile_permission(triple: str | None = None) -> bytes:
    """Compile what asks for AMX's tile registers: an object file for libraries that use them."""
    return _object_file(require_compiler(triple), "tile_permission.c")


@functools.cache
def _object_file(compiler: str, source: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "source.o")
        options = ["-x", "c", "-std=gnu11", "-O2", "-fPIC", "-c"]
        command = [compiler, *options, str(Path(__file__).with_name(source)), "-o", str(path)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode == 0:
            return path.read_bytes()
    lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    raise UserError(
        f"the C compiler {compiler} cannot compile C ({lines[-1]})",
        "a compiler of C11 with the C library's headers",
        "name another one by the environment variable CXX",
    )
