"""Laws of reductions.

``scaled``   sums and means as linear maps
``means``    means as sums, products as exponentials of sums
``extrema``  minima and maxima
``nested``   reductions of reductions, of transposes and broadcasts
"""
