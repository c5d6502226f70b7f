"""Elementwise kernels on a CPU: one parallel loop over rows or parts of rows.

``kernel``     the PrimFunc
``squares``    transposed loads: squares in vector registers, transposed by shuffles
"""
