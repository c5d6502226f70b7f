"""The record: of each architecture its groups, with their kernels' counts."""

from pathlib import Path
from typing import Any

from benchmarks.records import load_tables, store_tables

RECORD = Path(__file__).parent / "results" / "amd_clocks.json.xz"


def load() -> dict[str, Any]:
    """Return, by architecture, how its kernels were counted, and a row for each group."""
    return load_tables(RECORD)


def store(data: dict[str, Any]) -> None:
    """Store what :func:`load` returns."""
    store_tables(RECORD, data)
