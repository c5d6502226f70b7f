"""The row kernel on a CPU: one parallel loop over rows.

    parallel for row:  for pass:  vectors of the row; partial reductions per lane; combine lanes
    or, where neighbouring rows are contiguous, a row for each lane

``kernel``, ``loops``, ``vectors``  the PrimFunc; a pass; its stages as vector statements
``config``, ``prefetch``            widths; the next row, fetched while a pass computes
"""
