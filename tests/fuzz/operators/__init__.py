"""Every operator that the generator knows: how Relax spells it, and what it computes."""

from . import contractions, creation, elementwise, indexing, movement, normalization, reductions
from .operator import Operator

OPERATORS: dict[str, Operator] = {
    operator.name: operator
    for module in (
        elementwise,
        reductions,
        normalization,
        contractions,
        movement,
        indexing,
        creation,
    )
    for operator in module.OPERATORS
}

__all__ = ["OPERATORS", "Operator"]
