"""Kernels of one operator that no other template can express."""
