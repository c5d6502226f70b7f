"""Row programs: dependent reductions and maps over common rows, as one kernel.

    for row:  for pass (max; sum of exp; normalize, ..):  load, compute, reduce, store

===============  ===============================================================================
program          rows of a group, combiners of reductions, passes, softmax; what templates propose
cpu              a loop over rows, vectors inside
gpu              a block for a row, or several, or several blocks for a row
split            few long rows: two launches
channel_groups   group norm, channels last: pixels by channels
===============  ===============================================================================

``template`` claims; ``estimate`` says what rows cost.
"""
