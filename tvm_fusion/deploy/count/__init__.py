"""Kernel counts: launches and intermediate bytes of one inference, ours or stock TVM's."""

from .api import count, count_stock
from .profiler import Lowered, is_gpu
from .result import Count, Launch

__all__ = ["Count", "Launch", "Lowered", "count", "count_stock", "is_gpu"]
