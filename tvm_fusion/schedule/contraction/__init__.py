"""Kernels of one contraction: matrix products and convolutions with what surrounds them.

    D = epilogue(sum over k of prologue(A)[m, k] * prologue(B)[k, n])

===============  ===============================================================================
problem          the sum of products that a group computes, its GEMM view, epilogues, prologues
dequantize       weights of 4 and 8 bits on their way to the product
tile             what tiled GEMMs on tensor cores share: blocks, operands' layouts, results
mma              tiled GEMM with mma.sync (compute capability 7.5 on), AMD's MFMA and WMMA
wgmma            tiled GEMM with wgmma and TMA               Hopper
skinny           few rows: GEMV and skinny GEMM              CUDA cores or mma.sync
copies           operands in another form first: implicit GEMM, im2col, rows aligned or along K
gpu              which of these a group takes, and the template
back_to_back     two products whose hidden rows reach no memory       Hopper
cpu              GEMM over packed panels, and what has no such form
===============  ===============================================================================
"""
