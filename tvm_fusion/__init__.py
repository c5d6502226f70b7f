"""Operator fusion, graph rewriting and fast kernels for Apache TVM.

The names below are the public ones. They are looked up when first used: loading and running an
artifact needs TVM's runtime library only, and importing this package loads no part of TVM.
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

from . import _interrupt

if _interrupt.is_command_line():
    _interrupt.end_at_once()

from ._tvm import versions

if TYPE_CHECKING:
    from . import models as models
    from . import pipeline, transform
    from .compiler import compile
    from .config import FusionConfig
    from .deploy.build.artifact import Artifact
    from .deploy.runtime.executable import Executable
    from .deploy.runtime.load import load
    from .deploy.runtime.session import Session
    from .errors import UserError
    from .report.explain import Explanation, explain
    from .report.progress import progress
    from .signature import DimRange
    from .tuning import Tuning, tune

try:
    versions.check_versions()
except ImportError as error:
    if not _interrupt.is_command_line():
        raise
    print(f"tvm-fusion: {error}", file=sys.stderr)
    sys.exit(2)

__version__ = "0.1.0"

_HOMES = {
    "Artifact": "deploy.build.artifact",
    "DimRange": "signature",
    "Executable": "deploy.runtime.executable",
    "Explanation": "report.explain",
    "FusionConfig": "config",
    "Session": "deploy.runtime.session",
    "Tuning": "tuning",
    "UserError": "errors",
    "compile": "compiler",
    "explain": "report.explain",
    "load": "deploy.runtime.load",
    "progress": "report.progress",
    "tune": "tuning",
}
_MODULES = ("models", "pipeline", "transform")

__all__ = [
    "Artifact",
    "DimRange",
    "Executable",
    "Explanation",
    "FusionConfig",
    "Session",
    "Tuning",
    "UserError",
    "compile",
    "explain",
    "load",
    "pipeline",
    "progress",
    "transform",
    "tune",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f".{name}", __name__)
    if name in _HOMES:
        return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
