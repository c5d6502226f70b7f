"""Whole transformers on a GPU: host time included, against PyTorch's compiler and a CUDA graph."""
