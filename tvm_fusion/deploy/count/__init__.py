"""Kernel counts: launches and intermediate bytes of one inference, ours or stock TVM's."""

from .api import count, count_stock
from .result import Count, Launch

__all__ = ["Count", "Launch", "count", "count_stock"]
