"""Measured costs of groups, kept in a SQLite file between compilations.

One row a measurement, in the table ``measured``: the five texts of a :class:`~.record_key.Key`, the
microseconds, how many runs they are the median of, and when (UTC).
"""

from __future__ import annotations

import math
import os
import sqlite3
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple
from pathlib import Path
from types import TracebackType

from ..errors import UserError
from .record_key import Key

#: Environment variable with the path of the records; unset or empty: there are none.
VARIABLE = "TVM_FUSION_RECORDS"

_APPLICATION_ID = 0x54564D46  # "TVMF"; SQLite's header field for the kind of file
_FORMAT = 1  # SQLite's user_version
_WAIT_SECONDS = 30.0  # for another process that is writing
_SCHEMA = """
    CREATE TABLE measured (
        structure TEXT NOT NULL, dtypes TEXT NOT NULL, shapes TEXT NOT NULL,
        device TEXT NOT NULL, versions TEXT NOT NULL,
        us REAL NOT NULL, runs INTEGER NOT NULL, date TEXT NOT NULL,
        PRIMARY KEY (structure, dtypes, shapes, device, versions)
    ) WITHOUT ROWID
"""
_GET = """
    SELECT us FROM measured
    WHERE structure = ? AND dtypes = ? AND shapes = ? AND device = ? AND versions = ?
"""
_PUT = "INSERT OR REPLACE INTO measured VALUES (?, ?, ?, ?, ?, ?, ?, datetime('now'))"


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
    def open(cls, path: str | os.PathLike[str]) -> Records:
        """Open a file of records, made if it does not exist.

        Raises
        ------
        UserError
            If it is no such file, is damaged, or can be neither read nor made.
        """
        path = Path(path)
        if path.is_dir() or not path.parent.is_dir():
            found = "is a folder" if path.is_dir() else "lies in no existing folder"
            raise UserError(f"the records {str(path)!r} {found}", "a file", "name another")
        writable = os.access(path if path.exists() else path.parent, os.W_OK)
        mode = "rwc" if writable else "ro"
        with _explained(path):
            connection = sqlite3.connect(
                f"{path.absolute().as_uri()}?mode={mode}",
                uri=True,
                timeout=_WAIT_SECONDS,
                isolation_level=None,
                check_same_thread=False,  # the garbage collector may close it from any thread
            )
            try:
                _prepare(path, connection, writable)
            except BaseException:
                connection.close()
                raise
        return cls(path, connection, writable)

    def get(self, key: Key) -> float | None:
        """Look up the microseconds of all launches of a group; None if there is no measurement."""
        with _explained(self.path):
            row = self._connection.execute(_GET, astuple(key)).fetchone()
        return None if row is None else float(row[0])

    def put(self, key: Key, us: float, runs: int = 1) -> None:
        """Keep a measurement.

        Parameters
        ----------
        key : Key
            What was measured.
        us : float
            Median microseconds of all launches together.
        runs : int
            How many runs the median is of.

        Raises
        ------
        UserError
            If the file cannot be written.
        """
        if not (math.isfinite(us) and us > 0):
            raise ValueError(f"{us} us is no duration")
        if not self.is_writable:
            raise UserError(
                f"the records {str(self.path)!r} are read-only",
                "a writable file",
                f"change its permissions or set {VARIABLE} to another",
            )
        with _explained(self.path):
            self._connection.execute(_PUT, (*astuple(key), us, runs))

    def __len__(self) -> int:
        with _explained(self.path):
            return int(self._connection.execute("SELECT count(*) FROM measured").fetchone()[0])

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


def _prepare(path: Path, connection: sqlite3.Connection, writable: bool) -> None:
    """Check that the file is ours; make the table in a new one."""
    if writable:
        connection.execute("BEGIN IMMEDIATE")  # another process may be making the same file
    tables, application, version = (
        connection.execute(question).fetchone()[0]
        for question in (
            "SELECT count(*) FROM sqlite_master",
            "PRAGMA application_id",
            "PRAGMA user_version",
        )
    )
    is_new = (tables, application, version) == (0, 0, 0)
    if is_new and writable:
        connection.execute(_SCHEMA)
        connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {_FORMAT}")
    elif (application, version) != (_APPLICATION_ID, _FORMAT):
        ours = application == _APPLICATION_ID
        found = f"have format {version}" if ours else "are a database of something else"
        raise UserError(
            f"the records {str(path)!r} {found}",
            f"records of format {_FORMAT}",
            f"set {VARIABLE} to another file",
        )
    if writable:
        connection.execute("COMMIT")


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
