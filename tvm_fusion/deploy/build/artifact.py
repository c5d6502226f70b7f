"""A compiled model, and writing it to disk so that there is never half of one."""

import errno
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...core.progress import report
from ...errors import UserError
from ..runtime.artifact import manifest, weights_file
from ..runtime.artifact.weights_file import StoredWeight

AT = "@"  # between an architecture and the number of a worker from 1


@dataclass(frozen=True)
class Artifact:
    """A compiled model, ready to be exported; made by :func:`tvm_fusion.compile`.

    Attributes
    ----------
    manifest : dict
        What :mod:`tvm_fusion.deploy.runtime.artifact.manifest` documents, without the entries
        ``weights`` and ``files``, which come with the export.
    weights : mapping of str to numpy.ndarray
        By label, the weights that go next to the library, packed ones as kernels read them.
    used : mapping of str to mapping of str to StoredWeight
        By architecture, which of them is which weight; by architecture, ``@`` and the worker's
        number for workers from 1.
    export_library : callable
        Writes the shared library to a path.
    seconds : float
        Wall-clock time of the compilation.
    """

    manifest: dict[str, Any]
    weights: Mapping[str, np.ndarray]
    used: Mapping[str, Mapping[str, StoredWeight]]
    export_library: Callable[[Path], None]
    seconds: float

    def __repr__(self) -> str:
        source, target = self.manifest["source"], self.manifest["target"]["text"]
        return f"<Artifact of {source} for {target}, compiled in {self.seconds:.1f} s>"

    def export(self, path: str | os.PathLike[str]) -> Path:
        """Write the artifact as a folder.

        Everything is written under a temporary name next to it and then renamed. An interrupt or a
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
        if not isinstance(path, (str, os.PathLike)):
            raise UserError(f"a folder of type {type(path).__name__}", "its path")
        folder = Path(path).resolve()
        check_destination(folder)
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            staging = temporary_beside(folder)
        except OSError as error:
            raise _cannot_write(folder, error) from error
        report("writing")
        try:
            self._write(staging)
            _replace(staging, folder)
        except OSError as error:
            raise _cannot_write(folder, error) from error
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        return Path(path)

    def _write(self, folder: Path) -> None:
        self.export_library(folder / manifest.LIBRARY)
        places = weights_file.write(folder / manifest.WEIGHTS, self.weights)
        entries = {arch: weights_file.entries(places, used) for arch, used in self.used.items()}
        first = entries[self.manifest["target"]["archs"][0]]
        others = {
            arch: {**entry, "weights": entries[arch]}
            for arch, entry in self.manifest["architectures"].items()
        }
        files = {
            name: {
                "bytes": (folder / name).stat().st_size,
                "sha256": manifest.sha256(folder / name),
            }
            for name in (manifest.LIBRARY, manifest.WEIGHTS)
        }
        content: dict[str, Any] = {
            **self.manifest,
            "weights": first,
            "architectures": others,
            "files": files,
        }
        if "workers" in content:
            ranks = range(1, content["workers"]["size"])
            archs = content["target"]["archs"]
            own = [{arch: entries[f"{arch}{AT}{rank}"] for arch in archs} for rank in ranks]
            content["workers"] = {**content["workers"], "weights": own}
        manifest.write(folder, content)


def check_destination(folder: Path) -> None:
    """Make sure, before any work is done, that an artifact can be written to a place.

    Leaves nothing behind, not even the folders above it.

    Raises
    ------
    UserError
        If a file or a folder that is no artifact is there, or nothing can be created. A folder that
        holds anything besides an artifact's own files is none: replacing it would lose the rest.
    """
    try:
        folder = folder.resolve()
        free = _may_replace(folder)
    except OSError as error:
        raise _cannot_write(folder, error) from error
    except RuntimeError as error:  # what pathlib makes of links in a circle
        raise _cannot_write(folder, OSError(errno.ELOOP, os.strerror(errno.ELOOP))) from error
    if not free:
        raise UserError(
            f"{str(folder)!r} exists and is not an artifact", None, "name another output folder"
        )
    if Path.cwd().is_relative_to(folder):
        raise UserError(
            f"{str(folder)!r} is the current folder", "a folder that can be replaced as a whole"
        )
    check_writable(folder.parent)


def check_writable(folder: Path) -> None:
    """Make sure that something can be created in a folder, which need not exist yet.

    Raises
    ------
    UserError
        If it cannot, or a file is in the way.
    """
    try:
        existing = next(path for path in (folder, *folder.parents) if path.exists())
        tempfile.TemporaryDirectory(dir=existing).cleanup()
    except OSError as error:
        raise UserError(
            f"cannot write to {str(folder)!r} ({error.strerror})",
            None,
            "name a folder that you may write to",
        ) from error


def _may_replace(folder: Path) -> bool:
    """Whether nothing is there, an empty folder, or an artifact with nothing else in its folder."""
    if not folder.is_dir():
        return not folder.exists()
    names = {path.name for path in folder.iterdir()}
    return not names or (manifest.MANIFEST in names and names <= manifest.NAMES)


def temporary_beside(folder: Path) -> Path:
    """Make a folder next to another, hidden, with the permissions that the user's umask gives."""
    path = folder.with_name(f".{folder.name}-{secrets.token_hex(4)}")
    path.mkdir()
    return path


def _replace(staging: Path, folder: Path) -> None:
    """Put a finished folder in the place of an old one, or leave the old one there."""
    if not folder.exists():
        staging.rename(folder)
        return
    aside = temporary_beside(folder)
    old = aside / folder.name
    try:
        folder.rename(old)
        staging.rename(folder)
    except BaseException:
        if old.exists() and not folder.exists():
            old.rename(folder)
        raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _cannot_write(folder: Path, error: OSError) -> UserError:
    return UserError(
        f"cannot write {str(folder)!r} ({error.strerror or error})",
        None,
        "free space there or name another place",
    )
