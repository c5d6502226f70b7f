"""The one place that knows TVM versions; imported before TVM, so that it can say what is wrong."""

import importlib
from importlib.metadata import PackageNotFoundError, version
from typing import Any

PIPELINE = "tvm_fusion"  # the name of our Relax pipeline and of our TIR pipeline

TVM = "0.27.0.post1"
# From 0.1.15 on, serialising IR of this TVM to JSON segfaults: tensorize, MetaSchedule, save_json.
FFI_FROM, FFI_BELOW = (0, 1, 14), (0, 1, 15)
_INSTALL = 'run `pip install "apache-tvm==0.27.0.post1" "apache-tvm-ffi>=0.1.14.post0,<0.1.15"`'


def check_versions() -> None:
    """Stop with one sentence if the installed TVM is not the one that this package knows.

    Raises
    ------
    ImportError
        Naming what is installed, what is needed, and the command that installs it.
    """
    tvm, ffi = installed("apache-tvm"), installed("apache-tvm-ffi")
    if tvm != TVM:
        raise ImportError(f"tvm_fusion found apache-tvm {tvm}; expected {TVM}; {_INSTALL}.")
    if ffi is None or not FFI_FROM <= _release(ffi) < FFI_BELOW:
        raise ImportError(
            f"tvm_fusion found apache-tvm-ffi {ffi}; expected 0.1.14 (later ones crash with this "
            f"TVM); {_INSTALL}."
        )


def register_pipelines() -> None:
    """Register the named pipelines with TVM; their code is imported when one is asked for.

    TVM calls this at the end of its own import, through the entry point group ``tvm.backends``.
    """
    from tvm.base import _RUNTIME_ONLY

    if _RUNTIME_ONLY:
        return
    from tvm import relax
    from tvm.tirx import compilation_pipeline

    if PIPELINE not in relax.pipeline.PIPELINE_MAP:
        relax.register_pipeline(PIPELINE)(_lazy("relax_pipeline"))
    compilation_pipeline.register_tir_pipeline(PIPELINE, _lazy("tir_pipeline"))


def _lazy(factory: str) -> Any:
    def build(**options: Any) -> Any:
        return getattr(importlib.import_module("tvm_fusion.pipeline"), factory)(**options)

    return build


def installed(name: str) -> str | None:
    """Return the version of a package, None where it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _release(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:3] if part.isdigit())
