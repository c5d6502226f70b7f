"""Measured configurations: tasks of a model, candidates, races, records."""

from .tune_model import Tuning, tune

__all__ = ["Tuning", "tune"]
