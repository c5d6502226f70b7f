"""Bugs planted in a copy of the passes: what the fuzzer must find."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tvm_fusion

from .session import Report, run

PACKAGE = Path(tvm_fusion.__file__).parent


@dataclass(frozen=True)
class Bug:
    """One textual change of one file."""

    name: str  # what is wrong then
    file: str  # relative to the package
    # ``old`` occurs exactly once in the file.
    old: str
    new: str
    seeds: tuple[int, ...] = ()  # graphs that find it; all of them are right without the bug

    def occurrences(self) -> int:
        """Count how often ``old`` stands in the file."""
        return (PACKAGE / self.file).read_text().count(self.old)


def plant(bug: Bug, folder: Path) -> Path:
    """Copy the package into a folder, with the bug in it; returns the folder to import it from.

    Bytecode comes along, which is that of files with the times of the originals: to compile the
    package takes longer than most hunts.
    """
    copy = folder / PACKAGE.name
    written_now = "*.pyc.*"  # by other processes
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns(written_now))
    file = copy / bug.file
    for old in file.parent.glob(f"__pycache__/{file.stem}.*.pyc"):
        old.unlink()
    file.write_text(file.read_text().replace(bug.old, bug.new))
    return folder


def hunt(bug: Bug, seeds: Sequence[int], folder: Path) -> Report:
    """Check graphs with a copy of the passes that has the bug, up to the first failure."""
    place = plant(bug, folder)
    return run(seeds, jobs=1, shrinking=False, stop_at=1, path=[str(place)])
