"""Convert layers of networks."""

from . import (  # noqa: F401  # for their registrations
    convolution,
    detection,
    normalization,
    pooling,
    recurrent,
    resize,
)
