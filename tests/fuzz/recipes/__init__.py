"""Steps of the generator: an operator, or a few that belong together, on values that fit."""

from . import contractions, indexing, maps, movement, reductions
from .maps import join
from .registry import RECIPES

__all__ = ["RECIPES", "contractions", "indexing", "join", "maps", "movement", "reductions"]
