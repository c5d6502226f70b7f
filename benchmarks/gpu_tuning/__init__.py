"""Whole models on a GPU with records of their kernels, beside their defaults."""
