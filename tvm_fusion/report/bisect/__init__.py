"""Which decision of the planner breaks or slows a model, found by switching groups off."""

from .result import Bisection, Culprit, Outcome, Slowdown
from .search import find_broken
from .timing import find_slow

__all__ = ["Bisection", "Culprit", "Outcome", "Slowdown", "find_broken", "find_slow"]
