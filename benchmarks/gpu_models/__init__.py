"""Whole transformers on a GPU: host time included, beside PyTorch's compiler and a CUDA graph."""
