"""A SQLite file of measurements, kept between compilations.

It has what a tuner has found (:mod:`.tuning_records`), and alternatives of the planner that were
measured against each other (:mod:`.comparisons`).
"""

from __future__ import annotations

import os
import sqlite3
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from ...errors import UserError, refuse_lfs_pointer
from .schema import VARIABLE, prepare

_WAIT_SECONDS = 30.0  # for another process that is writing
_HEADER = 100  # bytes; SQLite overwrites what is shorter


class Records:
    """An open file of measurements; use :meth:`open` or :func:`default_records`.

    Several processes may read and write one file at once; a later measurement replaces an earlier
    one. A file that may not be written can be read.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection, writable: bool) -> None:
        self.path = path
        self.is_writable = writable
        self._connection = connection
        self._close = weakref.finalize(self, connection.close)

    @classmethod
    def open(cls, path: str | os.PathLike[str], must_exist: bool = False) -> Records:
        """Open a file of records, made if it does not exist.

        Parameters
        ----------
        must_exist
            Whether a file that does not exist is a mistake.

        Raises
        ------
        UserError
            If it is no such file, is damaged, or can be neither read nor made.
        """
        if not isinstance(path, str | os.PathLike):
            raise UserError(f"records of type {type(path).__name__}", "a path")
        path = Path(path)
        if path.is_dir() or not path.parent.is_dir():
            found = "is a folder" if path.is_dir() else "is not in an existing folder"
            raise UserError(f"the records {str(path)!r} {found}", "a file", "name another")
        if must_exist and not path.exists():
            raise UserError(
                f"there are no records {str(path)!r}", "a file that was written by tune"
            )
        refuse_lfs_pointer(path)
        writable = os.access(path if path.exists() else path.parent, os.W_OK)
        mode = "rwc" if writable else "ro"
        with _explained(path):
            if path.is_file() and 0 < path.stat().st_size < _HEADER:
                raise sqlite3.DatabaseError("file is not a database")
            connection = sqlite3.connect(
                f"{path.absolute().as_uri()}?mode={mode}",
                uri=True,
                timeout=_WAIT_SECONDS,
                isolation_level=None,
                check_same_thread=False,  # the garbage collector may close it from any thread
            )
            try:
                prepare(path, connection, writable)
                connection.execute("PRAGMA foreign_keys = ON")
            except BaseException:
                connection.close()
                raise
        return cls(path, connection, writable)

    def check_writable(self) -> None:
        """Stop where the file can only be read.

        Raises
        ------
        UserError
            If it can.
        """
        if not self.is_writable:
            raise UserError(
                f"the records {str(self.path)!r} are read-only",
                "a writable file",
                "change its permissions or name another",
            )

    def query(self, statement: str, values: Sequence[Any] = ()) -> list[tuple]:
        """Run one statement that only reads.

        Raises
        ------
        UserError
            If the file is damaged or cannot be read.
        """
        with _explained(self.path):
            return self._connection.execute(statement, values).fetchall()

    def execute(self, statement: str, values: Sequence[Any] = ()) -> int:
        """Run one statement that changes the file; it is on the disk when this returns.

        Returns
        -------
        int
            How many rows it changed.

        Raises
        ------
        UserError
            If the file cannot be written.
        """
        self.check_writable()
        with _explained(self.path):
            return int(self._connection.execute(statement, values).rowcount)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Let changes inside of ``with`` be on the disk together, or none of them."""
        self.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self.execute("ROLLBACK")
            raise
        self.execute("COMMIT")

    def close(self) -> None:
        """Close the file."""
        self._close()

    def __enter__(self) -> Records:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def default_records() -> Records | None:
    """Open the file that ``TVM_FUSION_RECORDS`` names; None if it names none."""
    path = os.environ.get(VARIABLE)
    return Records.open(path) if path else None


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Tell of what SQLite cannot do with a file in one sentence."""
    try:
        yield
    except sqlite3.Error as error:
        raise UserError(
            f"the records {str(path)!r} cannot be used ({error})",
            "a SQLite file that tvm_fusion has written",
            f"remove it, or set {VARIABLE} to another",
        ) from error
