"""Convert arithmetic, casts, reductions and products."""

from . import (  # noqa: F401  # for their registrations
    casts,
    elementwise,
    fourier,
    linear_algebra,
    quantized,
    reductions,
)
