"""The record: of each architecture its groups, with their kernels' counts."""

from pathlib import Path
from typing import Any

from benchmarks.records import load_tables, store_tables

RECORD = Path(__file__).parent / "results" / "amd_clocks.json.xz"
CLOCKS = ("matrix", "vector", "scalar", "memory", "lds")
COLUMNS = (
    *("blocks", "waves", "VGPR", "SGPR", "LDS bytes", "spills"),
    *(f"{kind} clocks" for kind in CLOCKS),
    *("LDS clocks", "without conflicts", "bytes", "narrow loads"),
    *("waves a SIMD", "us", "bound by"),
)
LOOPS = (
    *("kernel", "tile", "VGPR", "spills", "matrix of issue clocks", "products a barrier"),
    *("products from load to wait", "LDS of matrix clocks", "narrow loads"),
)


def load() -> dict[str, Any]:
    """Return, by architecture, how its kernels were counted, and a row for each group."""
    return load_tables(RECORD)


def store(data: dict[str, Any]) -> None:
    """Store what :func:`load` returns."""
    store_tables(RECORD, data)
