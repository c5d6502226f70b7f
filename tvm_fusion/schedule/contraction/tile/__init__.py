"""What tiled GEMMs on matrix units share: ``mma.sync`` and AMD's (``mma``), ``wgmma``.

    block tile of C in grid:
      A and B, a tile of block_k terms at a time       global -> shared, swizzled chunks of 16 bytes
      sums of each thread                              registers
      results in vectors                               registers (-> shared) -> global

``problem``, ``read_problem``    what is computed, in tiles of any shape; reading a product so
``shape``                        numbers that a tuner varies: tile of C, warps, stages, split-K
``grid``                         where the tiles lie
``config``                       a problem in tiles of a shape, and what its kernel takes
``operand_chunks``               how chunks of an operand are read, in tiles of any shape
``operand``, ``operand_layout``  copies of tiles, and where their chunks lie in shared memory
``turned_operand``               copies that transpose, for instructions that want rows of K
``window_copies``                the same of an image under a window
``results``, ``result_vectors``  results in vectors, and the widest that all can be stored in
``shared_epilogue``              sums through shared memory to these vectors
``pool_registers``               results that are pooled, in registers
``adjacent_columns``             results that read pairs of columns, which lie in one vector
``group_sums``, ``row_values``   what is added up beside them; ``ragged_tiles``: rows in groups
``pool_registers``                rows that are reduced over windows of pixels
``concat_parts``                 other parts of a concatenation, copied by idle threads
"""
