"""What tiled GEMMs on matrix units share: ``mma.sync`` and AMD's (``mma``), ``wgmma``.

    block tile of C in grid:
      A and B, a tile of block_k terms at a time       global -> shared, swizzled chunks of 16 bytes
      sums of each thread                              registers
      results in vectors                               registers (-> shared) -> global

``problem``, ``read_problem``    what is computed, in tiles of any shape; reading a product so
``shape``                        numbers that a tuner varies: tile of C, warps, stages, split-K
``grid``                         where the tiles lie
``config``                       a problem in tiles of a shape, and what its kernel takes
``operand``                      from global to shared memory
``results``                      from sums in registers to results in memory
``ragged_tiles``                 rows in groups
"""
