"""A compiled model, and writing it to disk so that there is never half of one."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UserError
from . import manifest, weights_file


@dataclass(frozen=True)
class Artifact:
    """A compiled model, ready to be exported; made by :func:`tvm_fusion.compile`.

    Attributes
    ----------
    manifest : dict
        What :mod:`tvm_fusion.deploy.manifest` documents, without the entries ``weights`` and
        ``files``, which come with the export.
    weights : mapping of str to numpy.ndarray
        The weights that go beside the library.
    export_library : callable
        Writes the shared library to a path.
    seconds : float
        Wall-clock time of the compilation.
    """

    manifest: dict[str, Any]
    weights: Mapping[str, np.ndarray]
    export_library: Callable[[Path], None]
    seconds: float

    def export(self, path: str | os.PathLike[str]) -> Path:
        """Write the artifact as a folder.

        Everything is written under a temporary name beside it and then renamed. An interrupt or a
        full disk leaves what was there before, or nothing.

        Parameters
        ----------
        path : str or os.PathLike
            The folder; an artifact that is already there is replaced.

        Returns
        -------
        Path
            The folder.

        Raises
        ------
        UserError
            If something else is there, or the place cannot be written.
        """
        folder = Path(path)
        check_destination(folder)
        staging = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        try:
            self._write(staging)
            _replace(staging, folder)
        except OSError as error:
            reason = error.strerror or str(error)
            raise UserError(f"cannot write {str(folder)!r} ({reason})", None, _FREE) from error
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        return folder

    def _write(self, folder: Path) -> None:
        self.export_library(folder / manifest.LIBRARY)
        entries = weights_file.write(folder / manifest.WEIGHTS, self.weights)
        files = {
            name: {
                "bytes": (folder / name).stat().st_size,
                "sha256": manifest.sha256(folder / name),
            }
            for name in (manifest.LIBRARY, manifest.WEIGHTS)
        }
        manifest.write(folder, {**self.manifest, "weights": entries, "files": files})
        folder.chmod(0o755)  # mkdtemp makes folders private


_FREE = "free space there or name another place"


def check_destination(folder: Path) -> None:
    """Make sure, before any work is done, that an artifact can be written to a place.

    Raises
    ------
    UserError
        If a file or a folder that is no artifact is there, or nothing can be created.
    """
    taken = folder.exists() and not (folder / manifest.MANIFEST).is_file()
    if taken and not (folder.is_dir() and not any(folder.iterdir())):
        raise UserError(
            f"{str(folder)!r} exists and is not an artifact", None, "name another output folder"
        )
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryDirectory(dir=folder.parent).cleanup()
    except OSError as error:
        raise UserError(
            f"cannot write to {str(folder.parent)!r} ({error.strerror})",
            None,
            "name an output folder that you may write to",
        ) from error


def _replace(staging: Path, folder: Path) -> None:
    """Put a finished folder in the place of an old one, or leave the old one there."""
    if not folder.exists():
        staging.rename(folder)
        return
    aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}-old-", dir=folder.parent))
    try:
        folder.rename(aside / "artifact")
        try:
            staging.rename(folder)
        except BaseException:
            (aside / "artifact").rename(folder)
            raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
