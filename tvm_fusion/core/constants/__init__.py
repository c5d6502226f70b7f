"""Constants of a model.

* ``evaluate``: operators on constants, by numpy; ``contiguous``: copies in C order on all cores.
* ``numpy_types``: element types in numpy; ``narrow_types``: those of 8 bits and fewer.
* ``weight_names``: which constant is which weight.
"""
