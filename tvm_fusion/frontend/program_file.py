"""Files of ``torch.export.save``. PyTorch is imported only to read one."""

from __future__ import annotations

import importlib.util
import os
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UserError, refuse_lfs_pointer
from .quiet import quiet_importer

if TYPE_CHECKING:
    import torch

_ZIP = b"PK\x03\x04"


def is_program_file(path: str | os.PathLike[str]) -> bool:
    """Tell an archive of PyTorch from an ONNX file, by its name or its first bytes."""
    path = Path(path)
    if path.suffix == ".pt2":
        return True
    try:
        if not path.is_file():  # reading from a pipe would wait
            return False
        with path.open("rb") as file:
            return file.read(len(_ZIP)) == _ZIP
    except OSError:
        return False


def load_program(path: str | os.PathLike[str]) -> torch.export.ExportedProgram:
    """Read an exported program.

    Raises
    ------
    UserError
        When the file is missing or holds something else, and where PyTorch is not installed.
    """
    path = Path(path)
    if not path.is_file():
        what = "is not a regular file" if path.exists() else "does not exist"
        raise UserError(f"{path} {what}", "a .pt2 file of torch.export.save", "check the path")
    refuse_lfs_pointer(path)
    if sys.modules.get("torch", path) is None:  # which the command line keeps from being imported
        del sys.modules["torch"]
    if importlib.util.find_spec("torch") is None:
        raise UserError(
            f"{path} is a PyTorch program, and PyTorch is not installed",
            None,
            "install the extra torch: pip install 'tvm_fusion[torch]'",
        )
    import torch

    try:
        with quiet_importer(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.export.load(path)
    except Exception as error:  # guard: zip, JSON and pickle raise types of their own
        (reason, *_) = str(error).strip().splitlines() or [type(error).__name__]
        raise UserError(
            f"{path} is not an exported program ({reason})",
            "a .pt2 file of torch.export.save",
            "export the module: torch.export.save(torch.export.export(model, inputs), path)",
        ) from error
