"""Convert layers of networks."""

from . import (  # noqa: F401  # for their registrations
    interpolation,
    normalization,
    pooling,
    products,
    recurrent,
)
