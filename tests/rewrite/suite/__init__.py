"""Expressions whose cheapest form is known: what a search is measured with."""

from . import factors, functions, products, published, reductions, sharing
from .expression import EXPRESSIONS, Expression, whole

__all__ = [
    "EXPRESSIONS",
    "Expression",
    "factors",
    "functions",
    "products",
    "published",
    "reductions",
    "sharing",
    "whole",
]
