"""Grammar of messages."""

from collections.abc import Sequence


def counted(number: int, noun: str) -> str:
    """Write a number and what it counts, such as ``1 kernel`` or ``3 kernels``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def few(names: Sequence[str], most: int = 3) -> str:
    """Write some names, and how many more there are: ``a, b, c and 2 more``; empty for none."""
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")
