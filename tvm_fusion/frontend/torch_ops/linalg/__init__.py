"""Convert linear algebra: each matrix of a batch by plain loops of one task of a kernel."""

from . import factorizations, householder, solves, spectra  # noqa: F401  # register their converters
