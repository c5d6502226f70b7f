"""Kernels and intermediate bytes of small graphs and of the zoo's models, stock TVM and ours."""
