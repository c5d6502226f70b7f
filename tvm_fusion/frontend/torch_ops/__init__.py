"""Convert PyTorch operators, with every result checked.

A module a family; importing it registers its converters.
"""

from ..registry import Unsupported
from . import (  # noqa: F401  # for their registrations
    activations,
    creation,
    decompositions,
    elementwise,
    indexing,
    matmul,
    normalization,
    pooling,
    reductions,
    shapes,
    values,
)
from .call import Call
from .importer import Importer, operator_name, reason_of
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
