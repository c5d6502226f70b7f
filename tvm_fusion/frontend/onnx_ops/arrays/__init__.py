"""Convert operators that make and move elements."""

from . import (  # noqa: F401  # for their registrations
    blocks,
    creation,
    indexing,
    padding,
    sequences,
    shapes,
    text,
)
