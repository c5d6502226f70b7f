"""Grammar of messages."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """Write a number and what it counts, such as ``1 kernel`` or ``3 kernels``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
