"""Special functions: piecewise polynomials, asymptotic series, and loops in kernels."""
