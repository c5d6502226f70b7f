"""All that is timed, in the order of the table."""

from __future__ import annotations

from .decoder import STEPS
from .others import OTHERS
from .works import NAMED, Work, drawn


def works(seed: int, count: int) -> list[Work]:
    """List the named works, further ones, a whole step of a decoder, and drawn ones."""
    return [*NAMED, *OTHERS, *STEPS, *drawn(seed, count)]
