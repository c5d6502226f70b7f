"""Operands of a Hopper GEMM: what the Tensor Memory Accelerator copies, and what threads compute.

``matrix``         views of matrices as tensor maps
``window``         windows of an image, and the weight by its taps
``match_window``   which operands are such
``rows``           A behind index maps, as boxes of its rows
``computed``       B that the producer's threads compute: dequantized weights
"""
