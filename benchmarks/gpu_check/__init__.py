"""Kernels compiled ahead of time on one machine, run and compared on another that has a GPU.

``python -m benchmarks.gpu_check build --out DIR`` plans, emits and compiles many small functions
and stores what each must return; ``python3 benchmarks/gpu_check/run.py DIR`` needs numpy and TVM's
runtime only. Inputs are not stored: both sides draw them from the same recipes.
"""
