"""A group as a row program, which all its kernels read.

``read``         a group's program, its axes in the order of memory, scalars recomputed by rows;
                 an axis of lanes where channels are blocked; ``group_lanes``: where groups are
``row_program``  stages that begin with rows; ``combiner``: terms and combiner of a reduction
``passes``       which stages share a loop over the row
``softmax``      sums of exp(x - max): one pass instead of two
``emit``         statements and indices over a row's axes
"""
