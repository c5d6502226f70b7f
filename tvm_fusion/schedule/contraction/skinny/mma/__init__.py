"""Skinny GEMM on tensor cores: a slice of K is a warp's.

``config``; ``mainloop``, ``row`` (one row, behind a norm or not), ``weights`` (half types, int4
and int8).
"""
