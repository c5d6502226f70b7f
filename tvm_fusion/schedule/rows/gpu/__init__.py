"""The row kernel on a GPU: a block for one or several rows, or several blocks for one.

    for pass:  threads take vectors of 16 bytes, several loads in flight; partial reductions
               all-reduce: shuffles of a warp, then warps in shared memory       one barrier
    registers keep what the next pass reads, as far as they reach; shared memory the rest

``forms``
    which threads take rows, and where these are kept: a table
``config``, ``space``
    threads of a row, rows of a block
``kernel``, ``passes``, ``thread_block``
    the PrimFunc, integers of 64 bits; loops and reductions; buffers, positions
``vectorize``, ``vector_loop``, ``row_vectors``
    widths of loads and stores; rows that are not aligned have masked ends
``storage``
    where a row is kept from pass to pass
``row_groups``
    what rows share is loaded once
``reductions``
    in one pass, in half types, of extrema's indices, by several blocks
"""
