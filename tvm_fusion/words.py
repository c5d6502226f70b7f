"""Grammar of messages, and numbers in JSON."""

import math
from collections.abc import Sequence
from typing import Any


def counted(number: int, noun: str) -> str:
    """Write a number and what it counts, such as ``1 kernel`` or ``3 kernels``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def few(names: Sequence[str], most: int = 3) -> str:
    """Write some names, and how many more there are: ``a, b, c and 2 more``; empty for none."""
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")


def finite(value: Any) -> Any:
    """Replace infinities and NaN, which JSON lacks, by None."""
    if isinstance(value, dict):
        return {key: finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
