"""Mathematical functions on AMD: what TVM's ROCm back end lacks comes from AMD's device library.

TVM 0.27 has no rule for a dozen functions (it stops in code generation), and its rules for the
transcendental functions of float64 lead LLVM to a library call that AMD targets do not have, upon
which LLVM ends the process. Both cases are caught while kernels are lowered: with OCML, AMD's
library of bitcode, they become calls of it; without it, a UserError says how to get it.
"""

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..._tvm.errors import register_errors
from ...device import GPUS
from ...errors import UserError

INSTALL_OCML = "apt-get install -y rocm-device-libs"

# Functions without any rule; the others below have one that holds for float32 and less.
_MISSING = (
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "copysign", "cosh", "exp10", "fmod",
    "hypot", "ldexp", "log1p", "nextafter", "sinh", "tan",
)  # fmt: skip
_FLOAT32_ONLY = ("cos", "erf", "exp", "exp2", "log", "log10", "log2", "pow", "sin", "tanh")


def find_ocml(arch: str) -> tuple[Path, ...]:
    """Return the bitcode files for an architecture in link order; empty where they are missing."""
    device = GPUS[arch]
    roots = [Path(os.environ.get("ROCM_PATH", "/opt/rocm"), "amdgcn/bitcode")]
    roots += sorted(Path("/usr/lib").glob("*/amdgcn/bitcode"))
    roots += sorted(Path("/usr/lib").glob("llvm-*/lib/clang/*/amdgcn/bitcode"))
    for root in roots:
        isa = (root / f"oclc_isa_version_{name}.bc" for name in device.device_library)
        abi = (root / f"oclc_abi_version_{version}.bc" for version in (600, 500))
        wave = "on" if device.warp_size == 64 else "off"
        names = ("ocml", "oclc_daz_opt_off", "oclc_finite_only_off", "oclc_unsafe_math_off",
                 "oclc_correctly_rounded_sqrt_on", f"oclc_wavefrontsize64_{wave}")  # fmt: skip
        files = [root / f"{name}.bc" for name in names]
        files += [path for path in map(_first_file, (isa, abi)) if path]
        if len(files) == len(names) + 2 and all(path.is_file() for path in files):
            return tuple(files)
    return ()


def _first_file(paths: Iterator[Path]) -> Path | None:
    return next((path for path in paths if path.is_file()), None)


@dataclass(frozen=True)
class _Library:
    """What the rules below act on while a toolchain is open."""

    lacking: str  # the architectures that AMD's library was not found for


_open: list[_Library] = []


@contextmanager
def device_math(archs: Sequence[str]) -> Iterator[dict[str, tuple[Path, ...]]]:
    """Lower mathematical functions for AMD inside this block.

    Yields
    ------
    dict of str to tuple of Path
        By architecture, the bitcode to link.
    """
    files = {arch: find_ocml(arch) for arch in archs}
    _register_rules()
    lacking = [arch for arch, found in files.items() if not found]
    _open.append(_Library(", ".join(lacking)))
    try:
        yield files
    finally:
        _open.pop()


@functools.cache
def _register_rules() -> None:
    from tvm.ir import Op
    from tvm.tirx import register_intrin_lowering

    register_errors()  # of what a rule raises
    for name in (*_MISSING, *_FLOAT32_ONLY):
        operator = "prim.log2" if name == "log2" else f"tirx.{name}"
        previous = Op.get(operator).get_attr("rocm.FLowerIntrinsic")
        rule = _rule(name, previous)
        # Rules cannot be taken back, so outside of `device_math` ours pass on to TVM's (level 10).
        register_intrin_lowering(operator, target="rocm", f=rule, level=11)


def _rule(name: str, previous: Callable[[Any], Any] | None) -> Callable[[Any], Any]:
    def lower(call: Any) -> Any:
        dtype = str(call.ty.dtype)
        if not _open or (previous is not None and not dtype.startswith("float64")):
            return previous(call) if previous is not None else call
        library = _open[-1]
        if library.lacking:
            found = f"{name} of {dtype} on {library.lacking} needs AMD's device library"
            raise UserError(f"{found}, which is missing", advice=f"run `{INSTALL_OCML}`")
        return _call_ocml(name, call)

    return lower


def _call_ocml(name: str, call: Any) -> Any:
    """Return the calls of OCML for one call of a function, one for each vector lane."""
    from tvm import DataType
    from tvm.tirx import Shuffle, call_pure_extern

    dtype = DataType(str(call.ty.dtype))
    scalar = str(dtype.with_lanes(1))
    # OCML has no bfloat16, and float32 holds every bfloat16.
    inner = "float32" if scalar == "bfloat16" else scalar
    function = f"__ocml_{name}_f{DataType(inner).bits}"

    def lane(arguments: Any) -> Any:
        # ldexp's second argument is an integer and stays one.
        widened = [a.astype(inner) if "float" in str(a.ty.dtype) else a for a in arguments]
        return call_pure_extern(inner, function, *widened).astype(scalar)

    if dtype.lanes == 1:
        return lane(call.args)
    count = range(dtype.lanes)
    lanes = [lane([Shuffle([argument], [i]) for argument in call.args]) for i in count]
    return Shuffle(lanes, list(count))
