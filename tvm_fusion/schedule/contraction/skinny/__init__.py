"""GEMV and skinny GEMM: few rows of A, so that each weight is read once, in vectors.

    block (batch, block_n columns) in grid, all of K:
      slice of K (a thread's or a warp's):  acc += A * B       B: global -> registers, several
                                                               loads in flight
      slices added up in shared memory, in a fixed order; epilogue

``gemv``    on CUDA cores
``mma``     on tensor cores, by mma.sync
``kernel``  the PrimFunc of both, and norms of heads behind; ``space``
"""
