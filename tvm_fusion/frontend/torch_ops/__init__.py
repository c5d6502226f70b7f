"""Convert PyTorch operators, with every result checked.

A module a family; importing it registers its converters.
"""

from ..registry import Unsupported
from . import (  # noqa: F401  # for their registrations
    activations,
    bits,
    complex_numbers,
    creation,
    decompositions,
    division,
    dynamic,
    elementwise,
    experts,
    fourier,
    indexing,
    interpolation,
    linalg,
    logarithms,
    matmul,
    normalization,
    pooling,
    ranks,
    recurrent,
    reductions,
    running,
    scatter,
    segments,
    shapes,
    slices,
    sorting,
    special,
    values,
)
from .call import Call
from .importer import Importer
from .operator_errors import operator_name, reason_of
from .registry import CONVERTERS, register, unsupported

__all__ = [
    "CONVERTERS",
    "Call",
    "Importer",
    "Unsupported",
    "operator_name",
    "reason_of",
    "register",
    "unsupported",
]
