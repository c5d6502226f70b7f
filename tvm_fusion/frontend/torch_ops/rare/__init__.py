"""Operators that few models have: their modules are imported when one of them is first converted.

    special/            Bessel functions, error functions, gamma functions, polynomials
    linalg/             factorizations, solvers, singular values, eigenvalues
    fourier             discrete Fourier transforms as matrix products
    complex_numbers     what mixes real and imaginary parts: products, magnitudes, angles

``REAL`` and ``COMPLEX`` list their operators. Each has an entry in the registry of all, so that
preflight, decomposition and the tables of operators know it; the entry imports its module, whose
converters are in the two registries of ``registry``.
"""

from importlib import import_module
from typing import Any

from .. import complex_pairs
from ..call import Call, Convert
from ..registry import register, with_overload
from .registry import COMPLEX as COMPLEX_CONVERTERS
from .registry import REAL as REAL_CONVERTERS

_POLYNOMIALS = (
    *(f"{shifted}chebyshev_polynomial_{kind}" for shifted in ("", "shifted_") for kind in "tuvw"),
    *("hermite_polynomial_h", "hermite_polynomial_he"),
    *("laguerre_polynomial_l", "legendre_polynomial_p"),
)
_OF_TWO = ("", ".x_scalar", ".n_scalar")  # overloads

#: By module, of real tensors.
REAL: dict[str, tuple[str, ...]] = {
    "complex_numbers": ("angle",),
    "linalg.factorizations": (
        *("linalg_lu_factor_ex", "linalg_lu", "lu_unpack", "_linalg_det", "_linalg_slogdet"),
        *("linalg_cholesky_ex", "cholesky"),
    ),
    "linalg.householder": ("geqrf", "linalg_householder_product", "ormqr", "linalg_qr"),
    "linalg.solves": (
        *("linalg_inv_ex", "_linalg_solve_ex", "linalg_lu_solve", "linalg_solve_triangular"),
        *("triangular_solve", "cholesky_solve", "cholesky_inverse", "linalg_matrix_exp"),
    ),
    "linalg.spectra": (
        *("_linalg_svd", "_linalg_eigh"),
        *("linalg_pinv.atol_rtol_tensor", "linalg_pinv.atol_rtol_float"),
    ),
    "special.bessel": (
        *("special_spherical_bessel_j0", "spherical_bessel_j0", "special_airy_ai"),
        *("i0", "special_i0", "special_i1"),
        *(f"{kind}{n}" for kind in ("special_modified_bessel_i", "bessel_i") for n in "01"),
        *(f"{kind}{n}e" for kind in ("special_i", "bessel_i") for n in "01"),
        *(f"{kind}{n}" for kind in ("special_bessel_j", "bessel_j") for n in "01"),
        *(f"special_bessel_y{n}" for n in "01"),
        *(f"special_{scaled}modified_bessel_k{n}" for scaled in ("", "scaled_") for n in "01"),
    ),
    "special.error_functions": (
        *("erfc", "special_erfc", "special_erfcx", "erfinv", "special_erfinv", "erf_inv"),
        *("special_ndtri", "ndtri"),
    ),
    "special.loops": (
        *("lgamma", "digamma", "special_digamma", "special_psi"),
        *(f"special_{name}{overload}" for name in _POLYNOMIALS for overload in _OF_TWO),
        *("special_zeta", "special_zeta.other_scalar", "special_zeta.self_scalar", "zeta"),
        *("polygamma", "special_polygamma"),
        *("special_gammainc", "igamma", "special_gammaincc", "igammac"),
    ),
}

#: By module, of complex tensors.
COMPLEX: dict[str, tuple[str, ...]] = {
    "complex_numbers": (
        *("mul.Tensor", "mul.Scalar", "div.Tensor", "div.Scalar", "true_divide.Tensor"),
        *("reciprocal", "_conj", "_conj_physical", "conj_physical", "abs", "angle", "exp", "log"),
        *("sgn", "sign", "eq.Tensor", "eq.Scalar", "ne.Tensor", "ne.Scalar"),
        *("isnan", "isinf", "isfinite", "mm", "bmm", "matmul", "view_as_real", "view_as_complex"),
        *("real", "imag", "complex", "polar", "_to_copy", "to.dtype", "convert_element_type"),
    ),
    "fourier": ("_fft_c2c", "_fft_r2c", "_fft_c2r"),
}


def _on_first_use(module: str, converters: Any, name: str) -> Convert:
    """Make the converter that imports the module which has it."""

    def convert(call: Call) -> Any:
        import_module(f".{module}", __name__)
        return converters[with_overload(name)].convert(call)

    return convert


def _enter() -> None:
    for names, enter, converters in (
        (REAL, register, REAL_CONVERTERS),
        (COMPLEX, complex_pairs.register, COMPLEX_CONVERTERS),
    ):
        for module, listed in names.items():
            for name in listed:
                enter(name)(_on_first_use(module, converters, name))


_enter()
