"""A group as a row program, which all its kernels read.

``read``         a group's program, its axes in the order of memory, scalars recomputed by rows
``row_program``  stages that begin with rows; ``combiner``: terms and combiner of a reduction
``passes``       which stages share a loop over the row
``softmax``      sums of exp(x - max): one pass instead of two
``channel_lanes``, ``group_lanes``
                 an axis of lanes where channels, or groups of them, are blocked
``invariants``   values that stay the same in a loop
``emit``         statements and indices over a row's axes
"""
