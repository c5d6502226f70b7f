"""The templates of contractions on CPUs.

``gemm``, ``emit``
    a GEMM or a contraction without columns; which kernel
``norm``, ``grouped``
    a norm in front of a GEMM; several products in a launch
"""
