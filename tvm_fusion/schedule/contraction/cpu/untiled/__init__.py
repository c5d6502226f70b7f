"""Depthwise convolutions, GEMV, what has no columns: TVM's schedules.

``kernel``     the schedule
``task_copy``  padded operands that a task copies for itself
"""
