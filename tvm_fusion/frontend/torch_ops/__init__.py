"""Converters of PyTorch's operators, and TVM's importer with each of its results checked."""

from . import (
    activations,
    compositions,
    creation,
    elementwise,
    lookups,
    norms,
    products,
    reductions,
    shapes,
    values,
    windows,
)
from .importer import Importer, operator_name, reason_of
from .registry import CONVERTERS, TAKES
from .reviewed import PYTHON, REVIEWED

__all__ = ["CONVERTERS", "PYTHON", "REVIEWED", "TAKES", "Importer", "operator_name", "reason_of"]
_FAMILIES = (
    activations,
    compositions,
    creation,
    elementwise,
    lookups,
    norms,
    products,
    reductions,
    shapes,
    values,
    windows,
)
