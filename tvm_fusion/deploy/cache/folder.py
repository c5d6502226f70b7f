"""Artifacts that were compiled before, on disk: safe with several processes, bounded in bytes.

  folder/KEY/            an artifact, renamed to this when it is whole; its time: its last use
  folder/.locks/NN       held while an artifact of these first letters is looked up or compiled
  folder/.HEX            what is being written, or in use: another name of an artifact's files

An artifact is used through hard links of its own, so that whoever removes it from the cache takes
it from nobody. What a killed process leaves is removed a day later.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import shutil
import tempfile
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import UserError
from ..build.artifact import Artifact
from ..runtime.artifact import manifest

FOLDER, LIMIT = "TVM_FUSION_CACHE", "TVM_FUSION_CACHE_SIZE"
DEFAULT_LIMIT = "10G"
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_LEFT_BEHIND = 86_400  # seconds, from which on an unfinished folder is nobody's


@dataclass(frozen=True)
class CachedArtifact(Artifact):
    """An artifact of the cache; :meth:`export` copies its files, and writes its manifest."""

    folder: Path  # where it is, under a name of its own as long as this object lives

    def _write(self, folder: Path) -> None:
        stored = manifest.read(self.folder)
        for name in stored["files"]:
            shutil.copyfile(self.folder / name, folder / name)
        own = {name: stored[name] for name in ("weights", "architectures", "files")}
        manifest.write(folder, {**self.manifest, **own})


class ArtifactCache:
    """A folder of artifacts by key.

    Parameters
    ----------
    folder
        Made if it is not there.
    limit
        Bytes of all artifacts; those used least recently go.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder, self.limit = folder, limit

    @classmethod
    def open(cls, cache: Any) -> ArtifactCache | None:
        """Open what a user named: a folder, or True for the usual one; None for None and False.

        Raises
        ------
        UserError
            For a folder that cannot be written to, or a size that is none.
        """
        if cache is None or cache is False:
            return None
        if not isinstance(cache, bool | str | os.PathLike):
            raise UserError(f"cache is {cache!r}", "True, False or a folder")
        text = os.environ.get(LIMIT) or DEFAULT_LIMIT
        found = re.fullmatch(r"([0-9]{1,15})([KMGT]?)", text.strip().upper())
        if found is None:
            raise UserError(
                f"{LIMIT} is {text!r}", "bytes, or a number with K, M, G or T behind it"
            )
        named = os.environ.get(FOLDER) or Path(_home(), "tvm_fusion")
        folder = Path(named if cache is True else os.fspath(cache)).expanduser()
        try:
            (folder / ".locks").mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryDirectory(dir=folder).cleanup()
        except OSError as error:
            raise UserError(
                f"cannot write to the cache {str(folder)!r} ({error.strerror})",
                "a folder that you may write to",
                f"name one, or set {FOLDER}",
            ) from error
        return cls(folder, int(found[1]) * _UNITS[found[2]])

    @contextlib.contextmanager
    def locked(self, key: str) -> Iterator[None]:
        """Keep other processes and threads from looking a key up until the end of ``with``.

        Whoever comes second finds what the first one compiled.
        """
        with (self.folder / ".locks" / key[:2]).open("w") as file:
            with contextlib.suppress(OSError):  # a file system without locks: compiled twice
                fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def get(self, key: str) -> CachedArtifact | None:
        """Return the artifact of a key; None where there is none, or a damaged one, which goes."""
        place, entry = self._name(), self.folder / key
        try:
            place.mkdir()
            for name in manifest.NAMES:
                _link(entry / name, place / name)
            found = manifest.read(place)
            manifest.verify(place, found)
            os.utime(entry)
        except FileNotFoundError:
            shutil.rmtree(place, ignore_errors=True)
            if entry.exists():
                self._remove(entry)
            return None
        except (OSError, UserError):  # what was cut short or changed is compiled again
            shutil.rmtree(place, ignore_errors=True)
            self._remove(entry)
            return None
        content = {k: v for k, v in found.items() if k not in ("weights", "files", "sha256")}
        artifact = CachedArtifact(content, {}, {}, lambda path: None, 0.0, place)
        weakref.finalize(artifact, shutil.rmtree, place, ignore_errors=True)
        return artifact

    def put(self, key: str, artifact: Artifact) -> None:
        """Keep an artifact, and remove those used least recently beyond the limit.

        A full disk keeps nothing: the artifact is there without.
        """
        place = self._name()
        try:
            artifact.export(place / "artifact")
            self._remove(self.folder / key)
            (place / "artifact").rename(self.folder / key)
        except (OSError, UserError):
            return
        finally:
            shutil.rmtree(place, ignore_errors=True)
        self._shrink()

    def _shrink(self) -> None:
        """Remove what is beyond the limit, and what killed processes left behind."""
        entries, now = [], time.time()
        for path in list(self.folder.iterdir()):
            with contextlib.suppress(OSError):  # another process removed it
                used = path.stat().st_mtime
                if not path.name.startswith("."):
                    size = sum(file.stat().st_size for file in path.iterdir())
                    entries.append((used, size, path))
                elif path.name != ".locks" and now - used > _LEFT_BEHIND:
                    shutil.rmtree(path, ignore_errors=True)
        total = sum(size for _, size, _ in entries)
        for _, size, path in sorted(entries):
            if total <= self.limit:
                break
            self._remove(path)
            total -= size

    def _remove(self, entry: Path) -> None:
        """Remove an entry at once: there is never half of one under its name."""
        aside = self._name()
        with contextlib.suppress(OSError):
            entry.rename(aside)
            shutil.rmtree(aside, ignore_errors=True)

    def _name(self) -> Path:
        return self.folder / f".{secrets.token_hex(8)}"


def _home() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def _link(source: Path, place: Path) -> None:
    try:
        os.link(source, place)
    except FileNotFoundError:
        raise
    except OSError:  # a file system without links
        shutil.copyfile(source, place)
