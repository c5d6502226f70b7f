"""Kernels of maps alone: elementwise operators and moves of data."""
