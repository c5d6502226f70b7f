"""Tiled GEMM on Hopper: TMA copies, wgmma, warp-specialized roles, a persistent grid.

    block in grid of at most as many as run at once:
      warpgroup 0, the producer:   for its tiles, for k:  wait(empty); TMA copies of A and B -> full
      consumers:                   for their tiles, for k:  wait(full); acc += A * B; arrive(empty)
                                   epilogue, from registers
    split-K: clusters of blocks, sums added up through distributed shared memory

``kernel``, ``roles``, ``stages``        the PrimFunc, its roles, the ring of stages and barriers
``operands``                             tensor maps of matrices and images; B that threads compute
``direct_epilogue``, ``staged_epilogue`` results in vectors, or 32 adjacent elements, one a lane
``dual_gemm``                            two weights of one A
``config``, ``space``, ``model``         one configuration; all, and the default; estimated clocks
"""
