"""Everything around TVM that AMD code objects need; no ROCm installation."""

import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ...errors import UserError
from .code_generator import building
from .rocm_math import device_math
from .rocm_threads import threads_of_target

_LINK, _BITCODE = "tvm_callback_rocm_link", "tvm_callback_rocm_bitcode_path"
# LLVM 22 inside TVM writes code object version 6, which lld reads from 19 on.
_LLD_VERSION = 19
INSTALL_LLD = "apt-get install -y lld-19"


def _rocm_root() -> Path:
    return Path(os.environ.get("ROCM_PATH", "/opt/rocm"))


def find_lld() -> tuple[str, ...] | None:
    """Return the command of an lld that reads today's AMD objects, or None.

    Looks on the PATH (``ld.lld`` and versioned names), in ROCm, then in the package ``ziglang``.
    """
    newest = range(29, _LLD_VERSION - 1, -1)
    names = ["ld.lld", *(f"ld.lld-{n}" for n in newest), str(_rocm_root() / "llvm/bin/ld.lld")]
    commands = [(path,) for name in names if (path := shutil.which(name))]
    if find_spec("ziglang"):
        commands.append((sys.executable, "-m", "ziglang", "ld.lld"))  # type: ignore[arg-type]
    return next((c for c in commands if (lld_version(c) or 0) >= _LLD_VERSION), None)


@functools.cache
def lld_version(command: tuple[str, ...]) -> int | None:
    """Return the major version that an lld reports."""
    done = subprocess.run([*command, "--version"], capture_output=True, text=True)
    match = re.search(r"LLD (\d+)", done.stdout)
    return int(match[1]) if match else None


def link_code_object(lld: Sequence[str], objects: bytes) -> bytes:
    """Link a relocatable AMD object into a code object; unresolved symbols are an error here."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "kernels.o"), Path(folder, "kernels.hsaco")
        source.write_bytes(objects)
        command = [*lld, "--no-undefined", "-shared", str(source), "-o", str(target)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"lld failed:\n{(done.stderr or done.stdout)[-4000:]}")
        return target.read_bytes()


@contextmanager
def rocm_toolchain(archs: Sequence[str]) -> Iterator[str]:
    """Let TVM build AMD code objects, each for the architecture of its target.

    Yields
    ------
    str
        The linker's command.

    Raises
    ------
    UserError
        If no lld is new enough; later, while a kernel is lowered, if it needs a function of AMD's
        device library and that is not installed.
    """
    import tvm.support.rocm  # noqa: F401 (registers TVM's own callbacks, put back at the end)
    import tvm_ffi

    lld = find_lld()
    if lld is None:
        raise UserError(
            f"no lld {_LLD_VERSION} or newer was found, which links AMD code objects",
            advice=f"run `{INSTALL_LLD}` or `pip install ziglang`",
        )
    with (
        device_math(archs) as bitcode,
        building("rocm") as built_for,
        threads_of_target() as linked,
    ):
        callbacks = {
            _LINK: lambda objects: bytearray(link_code_object(lld, linked(bytes(objects)))),
            _BITCODE: lambda *_: [str(path) for path in bitcode.get(built_for()[0], ())],
        }
        previous: dict[str, Any] = {name: tvm_ffi.get_global_func(name) for name in callbacks}
        for name, callback in callbacks.items():
            tvm_ffi.register_global_func(name, callback, override=True)
        try:
            yield " ".join(lld)
        finally:
            for name, callback in previous.items():
                tvm_ffi.register_global_func(name, callback, override=True)
