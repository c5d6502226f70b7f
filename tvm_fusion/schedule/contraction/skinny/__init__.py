"""GEMV and skinny GEMM: few rows of A, so that each weight is read once, in vectors.

    block (batch, block_n columns) in grid, all of K:
      slice of K (a thread's or a warp's):  acc += A * B       B: global -> registers, several
                                                               loads in flight
      slices added up in shared memory, in a fixed order; epilogue

On CUDA cores  ``gemv_config``, ``gemv_default``, ``model`` (its clocks); ``gemv_mainloop``,
               ``gemv_tile``, ``thread_tile``
On mma.sync    ``mma_config``; ``mma_mainloop``, ``mma_row`` (one row, behind a norm or not),
               ``mma_weights`` (half types, int4 and int8)
Both           ``kernel`` (the PrimFunc, and norms of heads behind), ``norm_rows`` (an RMS norm in
               front), ``space``
"""
