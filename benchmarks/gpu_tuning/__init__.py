"""Whole models on a GPU with records of their kernels, against their defaults."""
