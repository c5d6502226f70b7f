"""Everything around TVM that CUDA machine code needs, on a machine without a GPU too."""

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ..._tvm.cuda import load_cuda_runtime
from ...errors import UserError
from .code_generator import building
from .host import require_compiler
from .nvcc import compile_with_nvcc, find_nvcc, nvcc_architectures
from .nvrtc import compile_with_nvrtc, nvrtc_lacks

_CALLBACK = "tvm_callback_cuda_compile"
_INSTALL = 'run `pip install "tvm_fusion[cuda]"`'


Compile = Callable[[str, Sequence[str]], bytes]


def choose_compiler(archs: Sequence[str]) -> tuple[str, Compile]:
    """Choose between an installed nvcc and NVRTC from the ``cuda`` extra.

    Parameters
    ----------
    archs
        Architectures to make code for.

    Returns
    -------
    tuple of (str, callable)
        ``"nvcc"`` or ``"nvrtc"``, and the function from CUDA source and some of the architectures
        to machine code. nvcc comes first; TVM's environment variable ``TVM_CUDA_COMPILE_MODE``
        decides where it is set.

    Raises
    ------
    UserError
        If neither can do it; says what is missing and how to get it.
    """
    asked = os.environ.get("TVM_CUDA_COMPILE_MODE", "").lower()
    if asked not in ("", "nvcc", "nvrtc"):
        raise UserError(f"TVM_CUDA_COMPILE_MODE is {asked!r}", "nvcc or nvrtc")
    reasons = []
    if asked != "nvrtc":
        nvcc = find_nvcc()
        unknown = sorted(set(archs) - nvcc_architectures(nvcc)) if nvcc else []
        if nvcc and not unknown:
            return "nvcc", functools.partial(compile_with_nvcc, nvcc)
        reasons.append(f"{nvcc} cannot make {', '.join(unknown)}" if nvcc else "nvcc was not found")
    if asked != "nvcc":
        missing = nvrtc_lacks()
        if not missing:
            return "nvrtc", compile_with_nvrtc
        reasons.append(f"these packages are missing: {', '.join(missing)}")
    advice = _INSTALL if asked != "nvcc" else "install CUDA 13's compiler, or unset the variable"
    raise UserError(f"no CUDA compiler: {'; '.join(reasons)}", advice=advice)


@contextmanager
def cuda_toolchain(archs: Sequence[str]) -> Iterator[str]:
    """Let TVM build CUDA modules, each with machine code for the architectures of its target.

    Yields
    ------
    str
        The compiler used, ``"nvcc"`` or ``"nvrtc"``.
    """
    import tvm.support.nvcc  # noqa: F401 (registers TVM's own callback, put back at the end)
    import tvm_ffi

    name, compile_source = choose_compiler(archs)
    load_cuda_runtime(require_compiler())

    with building("cuda") as built_for:

        def callback(code: str, *_: Any) -> bytearray:
            return bytearray(compile_source(str(code), built_for()))

        previous = tvm_ffi.get_global_func(_CALLBACK)
        tvm_ffi.register_global_func(_CALLBACK, callback, override=True)
        try:
            yield name
        finally:
            tvm_ffi.register_global_func(_CALLBACK, previous, override=True)
