"""Advise what to do about PyTorch operators that have no converter."""

from __future__ import annotations

import re
from collections.abc import Iterable

_ADVICE = (
    (
        r"linalg|cholesky|lu_|^lu|qr|svd|eig|ormqr|geqrf|lstsq|triangular_solve|inverse|slogdet",
        "compute factorizations outside of the model and pass their results as inputs",
    ),
    (
        r"complex|view_as_real|view_as_complex|polar|conj|angle|real|imag",
        "keep real and imaginary parts as two tensors",
    ),
    (
        r"special_|igamma|polygamma|digamma|lgamma|erfinv|i0|bessel|zeta",
        "approximate special functions by exp, log and erf",
    ),
    (r"sparse|to_dense|_nested|quantiz|dequant", "keep tensors dense and of plain dtypes"),
    (
        r"while_loop|^scan$|associative_scan|map_impl|^cond$",
        "keep real and imaginary parts as two tensors in branches and loops",
    ),
    (r"^[a-z_]+$", "give the dimensions that are computed with a fixed extent"),
    (r"backward", "export the model for inference, under torch.no_grad()"),
)
_OTHERWISE = (
    "decompose {names} before compiling: "
    "program.run_decompositions({{torch.ops.{first}: function_of_supported_operators}})"
)


def advice(names: Iterable[str]) -> str:
    """Say what to do instead of operators, such as ``aten._fft_r2c``.

    Returns
    -------
    str
        Imperatives, the ways joined by "and".
    """
    ways, rest = [], []
    for name in names:
        found = [way for pattern, way in _ADVICE if re.search(pattern, name.split(".", 1)[-1])]
        ways += found[:1]
        rest += [] if found else [name]
    if rest:
        listed = ", ".join(rest)
        ways.append(_OTHERWISE.format(names=listed, first=rest[0]))
    return " and ".join(dict.fromkeys(ways))
