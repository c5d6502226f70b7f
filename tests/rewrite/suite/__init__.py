"""Sixty expressions whose cheapest form is known: what a search is measured with."""

from . import factors, functions, products, published, reductions, sharing
from .expression import EXPRESSIONS, Expression

__all__ = ["EXPRESSIONS", "Expression"]
