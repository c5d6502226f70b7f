"""Convert operators that make and move elements."""

from . import (  # noqa: F401  # for their registrations
    creation,
    dynamic,
    indexing,
    scatter,
    shapes,
    slices,
)
