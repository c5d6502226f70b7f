"""Elementwise kernels: maps alone, movement of data included."""
