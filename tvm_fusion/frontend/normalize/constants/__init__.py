"""Expressions of constants.

* ``graph``: from what a module stores to what reads it; ``fold``: computes them with numpy.
* ``stored``: which of them are stored, so that together they take the fewest bytes.
"""
