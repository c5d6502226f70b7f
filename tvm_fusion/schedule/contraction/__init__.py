"""Kernels of one contraction: matrix products and convolutions with what surrounds them."""
