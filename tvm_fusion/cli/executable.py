"""What a command runs: an artifact, or a model that is compiled for it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ..config import FusionConfig, parse_dims

if TYPE_CHECKING:
    from ..deploy.runtime.executable import Executable

_MODELS = (".onnx", ".pt2")


def add_artifact_argument(parser: argparse.ArgumentParser) -> None:
    """Add the argument that names it."""
    parser.add_argument(
        "artifact",
        help="a folder that `tvm-fusion compile` wrote; or an ONNX or .pt2 file, which is compiled "
        "for this CPU, at the extents of --dim, and kept in the cache",
    )


def add_function_argument(parser: argparse.ArgumentParser) -> None:
    """Add the option that names one of an artifact's functions."""
    parser.add_argument("--function", metavar="NAME", help="which function (default: main)")


def is_model(path: str) -> bool:
    """Whether a path is a model's, and not an artifact's."""
    return path.endswith(_MODELS) and Path(path).is_file()


def executable_of(options: argparse.Namespace) -> Executable:
    """Load the artifact that :func:`add_artifact_argument` names, compiled first where it is none.

    The extents of a model's symbolic dimensions are bound then; ``options.dim`` is emptied.
    """
    from ..deploy.runtime.load import load

    if not is_model(options.artifact):
        return load(options.artifact)
    from .._interrupt import is_command_line
    from .._tvm.ffi_speed import speed_up_ffi
    from .._tvm.log import quiet_log
    from ..compiler import compile

    if is_command_line():
        speed_up_ffi()
    config = FusionConfig(dims=parse_dims(options.dim))
    options.dim = []
    with quiet_log():
        return load(compile(options.artifact, "cpu", config, cache=True))


def function_of(options: argparse.Namespace, executable: Executable) -> str:
    """Return the function that is asked for, or else ``main``, or the first one.

    Raises
    ------
    UserError
        For a name that the artifact does not have.
    """
    from ..deploy.runtime.artifact.manifest import main_function

    return executable.function(options.function or main_function(executable.manifest)).name
