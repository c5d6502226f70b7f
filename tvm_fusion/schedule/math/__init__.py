"""Functions of numbers, in forms that compilers vectorize or GPUs execute in few instructions.

``vector_math``, ``vector_functions``
    float32 on CPUs, without the C library
``quotients``
    divisions by a constant that are rounded, by fused multiply-adds on CPUs
``half_math``, ``amd_half_functions``
    half-type results on GPUs, within one ulp
``ptx_math``
    PTX that CUDA's compiler does not choose
"""
