"""Convert PyTorch operators, with every result checked.

A module a family; importing it registers its converters. Those of ``rare`` are imported when
a program first has one of their operators.
"""

from ..registry import Unsupported
from . import arrays, layers, math, rare  # noqa: F401  # for their registrations
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
