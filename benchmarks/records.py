"""Records of measurements as JSON: a line for each thing that was measured."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from typing import Any


def text(record: Mapping[str, Any]) -> str:
    """Write a record with a line for each item of a list or table, so that a change shows what."""
    return "{\n" + ",\n".join(f" {_text(k)}: {_items(v)}" for k, v in record.items()) + "\n}\n"


def dated(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record of runs elsewhere with today's date, when it is kept."""
    about = record["about"] | {"date": str(datetime.date.today())}
    return {**record, "about": about}


def _items(value: Any) -> str:
    if isinstance(value, list) and value:
        return "[\n  " + ",\n  ".join(map(_text, value)) + "\n ]"
    if isinstance(value, Mapping) and value:
        lines = [f"{_text(k)}: {_text(v)}" for k, v in value.items()]
        return "{\n  " + ",\n  ".join(lines) + "\n }"
    return _text(value)


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
