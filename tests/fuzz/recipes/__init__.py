"""Steps of the generator: an operator, or a few that belong together, on values that fit."""

from . import combinations, contractions, indexing, maps, movement, reductions
from .maps import join
from .registry import RECIPES

__all__ = [
    "RECIPES",
    "combinations",
    "contractions",
    "indexing",
    "join",
    "maps",
    "movement",
    "reductions",
]
