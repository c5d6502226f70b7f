"""Contractions on CPUs: GEMM over packed panels, after Goto and van de Geijn.

    tasks in parallel: (batch, chunk of panels of columns, block of rows)
      for pass over K of kc:  panels of B [kc][nr], packed at compile time or by the task
        for panel, tile of mr rows:  acc[mr][nr] += A[mr, k] * B[k, nr]; last, the epilogue

On tile registers (AMX) the loop over panels is outside of that over passes.

``blocking``, ``config``
    sizes by registers and caches; a configuration, and all that fit
``dot_products``, ``tile_product``
    instructions of int8, int16 and bfloat16: of vectors, of tile registers
``operands``
    where A and B are read from
``blocks``
    packed weights in blocks with a scale each
``kernel``, ``tile``, ``accumulators``, ``epilogue``
    the loops; a register tile; its sums in vectors or tile registers; its results
``tile_blocking``
    sizes for tile registers
``ragged_rows``
    rows in groups, each with a B of its own
``untiled``
    depthwise convolutions, GEMV, what has no columns
``templates``
    claims: a GEMM, a norm in front of it, several products in a launch; which kernel
"""
