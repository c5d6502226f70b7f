"""Row programs, dependent reductions and maps over common rows, as one kernel."""

from .cpu import schedule_rows_cpu
from .gpu import RowEstimate, estimate_rows_gpu, schedule_rows_gpu

__all__ = ["RowEstimate", "estimate_rows_gpu", "schedule_rows_cpu", "schedule_rows_gpu"]
