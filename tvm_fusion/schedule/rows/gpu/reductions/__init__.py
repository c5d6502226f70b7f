"""Reductions of rows in other ways than one sum a pass.

``one_pass_variance``   mean and variance in one pass, about a shift near the mean
``half_precision``      fast math below the rounding of half-type results
``arg_extremum``        the extremum of a row, then its first index
``split_form``          reductions that several blocks share
"""
