"""Operators that few models have: their modules are imported when one of them is first converted.

    special/            Bessel functions, error functions, gamma functions, polynomials
    linalg/             factorizations, solvers, singular values, eigenvalues
    fourier             discrete Fourier transforms as matrix products
    complex_numbers     what mixes real and imaginary parts: products, magnitudes, angles

``names`` lists their operators. Each has an entry in the registry of all, so that preflight,
decomposition and the tables of operators know it; the entry imports its module, whose converters
are in the two registries of ``registry``.
"""

from importlib import import_module
from typing import Any

from .. import complex_pairs
from ..call import Call, Convert
from ..registry import register, with_overload
from .names import COMPLEX, REAL
from .registry import COMPLEX as COMPLEX_CONVERTERS
from .registry import REAL as REAL_CONVERTERS


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
