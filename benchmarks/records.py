"""Records of measurements as JSON: a line for each thing that was measured, or each figure."""

import argparse
import datetime
import json
import lzma
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

_DIGITS = 6  # of a figure: more than a clock is good for, and than a page shows
# Text, mostly: literals by their context, at any alignment.
_FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 4, "lp": 0, "pb": 0}]


def text(record: Mapping[str, Any]) -> str:
    """Write a record with a line for each item of a list or table, so that a change shows what."""
    return "{\n" + ",\n".join(f" {_text(k)}: {_items(v)}" for k, v in record.items()) + "\n}\n"


def columns(rows: Iterable[Mapping[str, Any]]) -> list[list[Any]]:
    """Store rows as the names of their keys, then all values of each; null: a row has no such."""
    rows = list(rows)
    names = list(dict.fromkeys(name for row in rows for name in row))
    return [names, *([row.get(name) for row in rows] for name in names)]


def rows_of(stored: Sequence[Sequence[Any]]) -> list[dict[str, Any]]:
    """Return the rows that ``columns`` has stored."""
    names, *values = stored
    return [
        {name: value for name, value in zip(names, row, strict=True) if value is not None}
        for row in zip(*values, strict=True)
    ]


def load_tables(path: Path) -> dict[str, Any]:
    """Return what ``store_tables`` has stored, in a ``.json.xz``; nothing where there is none."""
    stored = read(path) if path.exists() else {}
    return {name: {**about, "rows": rows_of(rows)} for name, (about, *rows) in stored.items()}


def store_tables(path: Path, tables: Mapping[str, Mapping[str, Any]]) -> None:
    """Store tables by name, as lists whose first item tells how their ``rows`` were measured."""
    stored = {
        name: [{k: v for k, v in table.items() if k != "rows"}, *columns(table["rows"])]
        for name, table in tables.items()
    }
    write(path, stored)


def write(path: Path, record: Mapping[str, Any]) -> None:
    """Write a record whole or not at all; a large one compressed, as ``.json.xz``."""
    data = text(record).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_bytes(compressed(data) if path.suffix == ".xz" else data)
    partial.replace(path)


def compressed(data: bytes) -> bytes:
    """Compress a record or a graph as an ``.xz``, as small as it gets."""
    return lzma.compress(data, check=lzma.CHECK_CRC32, filters=_FILTERS)


def read(path: Path) -> dict[str, Any]:
    """Read a record."""
    data = path.read_bytes()
    return json.loads(lzma.decompress(data) if path.suffix == ".xz" else data)


def dated(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record of runs elsewhere with today's date, when it is kept."""
    about = record["about"] | {"date": str(datetime.date.today())}
    return {**record, "about": about}


def take(name: str, about: str | None, keep: Callable[[Mapping[str, Any]], None]) -> None:
    """Run the command line of a benchmark that was measured elsewhere: keep what came back."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=about)
    parser.add_argument("result", type=Path, help="what came back")
    keep(json.loads(parser.parse_args().result.read_text()))


def merged(path: Path, record: Mapping[str, Any], *keys: str) -> list[dict[str, Any]]:
    """Let a dated record's rows replace those of a stored one with the same values of some keys."""
    date = record["about"]["date"]
    kept = read(path)["rows"] if path.exists() else []
    fresh = [{**row, "date": date} for row in record["rows"]]
    return [*{tuple(row[key] for key in keys): row for row in (*kept, *fresh)}.values()]


def _items(value: Any) -> str:
    if isinstance(value, list | tuple) and value:
        return "[\n  " + ",\n  ".join(map(_text, value)) + "\n ]"
    if isinstance(value, Mapping) and value:
        lines = [f"{_text(k)}: {_text(v)}" for k, v in value.items()]
        return "{\n  " + ",\n  ".join(lines) + "\n }"
    return _text(value)


def _text(value: Any) -> str:
    return json.dumps(rounded(value), separators=(",", ":"))


def rounded(value: Any) -> Any:
    """Round numbers to the digits that a record keeps."""
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    if isinstance(value, Mapping):
        return {k: rounded(v) for k, v in value.items()}
    return [rounded(v) for v in value] if isinstance(value, list | tuple) else value
