"""Convert arithmetic, reductions and comparisons along axes."""

from . import (  # noqa: F401  # for their registrations
    activations,
    arithmetic,
    bits,
    decompositions,
    ranks,
    reductions,
    segments,
)
