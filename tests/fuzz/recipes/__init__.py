"""Steps of the generator: an operator, or a few that belong together, on values that fit."""

from . import combinations, contractions, indexing, integers, maps, movement, reductions
from .maps import join
from .registry import RECIPES, WIDE_RECIPES

__all__ = [
    "RECIPES",
    "WIDE_RECIPES",
    "combinations",
    "contractions",
    "indexing",
    "integers",
    "join",
    "maps",
    "movement",
    "reductions",
]
