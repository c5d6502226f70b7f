"""Convert special functions: piecewise polynomials, asymptotic series, and loops in kernels."""

from . import bessel, error_functions, gamma, loops  # noqa: F401  # register their converters
