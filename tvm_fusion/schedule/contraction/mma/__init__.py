"""Tiled GEMM with ``mma.sync``: any operands, small tiles, split-K.

    block (batch, tile of C, split-K rank) in grid:
      for tile of block_k:   cp.async pipeline of stages in shared memory    one barrier a tile
        fragments            ldmatrix, double buffered
        acc += a * b         mma.m16n8k16
      acc -> shared memory -> results in vectors

On AMD GPUs the same with MFMA and WMMA, one barrier a tile: its loads are on their way, through
registers, while the tile before is multiplied.

``kernel``                              the PrimFunc; ``mainloop``: the pipeline
``fragments``                           registers of both operands, by ldmatrix or of AMD's waves,
                                        and their products
``wave_tiles``                          tiles of AMD's waves, and their issue clocks
``split_k_workspace``                   partial sums in global memory, added up by a second kernel
``model``, ``default``                  estimated clocks, and the tile of the least; ``space``: all
                                        that fit
``unaligned_tiles``                     rows that are no multiple of 16 bytes
``grouped_choice``                      small products of different operands in one launch
"""
