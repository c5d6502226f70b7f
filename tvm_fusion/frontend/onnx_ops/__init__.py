"""Convert ONNX operators that TVM's importer lacks or gets wrong; ``README.md``: how to add one.

A module a family; importing it registers its converters.
"""

from ..registry import Unsupported
from . import arrays, classical, layers, math, microsoft  # noqa: F401  # for their registrations
from .importer import Importer
from .node import Node
from .registry import CONVERTERS, other_than, qualified_name, register

__all__ = [
    "CONVERTERS",
    "Importer",
    "Node",
    "Unsupported",
    "other_than",
    "qualified_name",
    "register",
]
