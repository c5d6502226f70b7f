"""Laws of maxima, comparisons, conditions and types.

``lattice``  of minimum and maximum, and, or
``order``    of increasing functions and comparisons
``select``   of ``where``
``logic``    of booleans and bits
``casts``    of types
"""
