"""The tables of a file of records."""

import sqlite3
from pathlib import Path

from ...errors import UserError

#: Environment variable with the path of the records; unset or empty: there are none.
VARIABLE = "TVM_FUSION_RECORDS"

_APPLICATION_ID = 0x54564D46  # "TVMF"; SQLite's header field for the kind of file
_FORMAT = 3  # SQLite's user_version
_TABLES = (
    """
    CREATE TABLE task (
        id INTEGER PRIMARY KEY,
        structure TEXT NOT NULL, dtypes TEXT NOT NULL, shapes TEXT NOT NULL,
        device TEXT NOT NULL, versions TEXT NOT NULL, title TEXT NOT NULL,
        UNIQUE (structure, dtypes, shapes, device, versions)
    )
    """,
    """
    CREATE TABLE trial (
        task INTEGER NOT NULL REFERENCES task (id) ON DELETE CASCADE,
        config TEXT NOT NULL, us REAL, default_us REAL, error TEXT NOT NULL, date TEXT NOT NULL,
        PRIMARY KEY (task, config)
    ) WITHOUT ROWID
    """,
    """
    CREATE TABLE tuned (
        task INTEGER PRIMARY KEY REFERENCES task (id) ON DELETE CASCADE,
        config TEXT NOT NULL, us REAL NOT NULL, default_us REAL NOT NULL, date TEXT NOT NULL
    )
    """,
    """
    CREATE TABLE comparison (
        id INTEGER PRIMARY KEY,
        question TEXT NOT NULL, device TEXT NOT NULL, versions TEXT NOT NULL, title TEXT NOT NULL,
        us TEXT NOT NULL, runs INTEGER NOT NULL, error TEXT NOT NULL, date TEXT NOT NULL,
        UNIQUE (question, device, versions)
    )
    """,
)


def prepare(path: Path, connection: sqlite3.Connection, writable: bool) -> None:
    """Check that the file is ours; make the tables in a new one."""
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
    if writable and is_new:
        for table in _TABLES:
            connection.execute(table)
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
