"""Whole models in bfloat16 on a CPU, beside PyTorch eager's own error."""
