"""Measured configurations: tasks of a model, candidates, races, records."""

from .tuner import Tuning, tune

__all__ = ["Tuning", "tune"]
