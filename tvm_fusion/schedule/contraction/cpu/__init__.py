"""Contractions on CPUs: GEMM over packed panels, after Goto and van de Geijn.

    tasks in parallel: (batch, chunk of panels of columns, block of rows)
      for pass over K of kc:  panels of B [kc][nr], packed at compile time or by the task
        for panel, tile of mr rows:  acc[mr][nr] += A[mr, k] * B[k, nr]; last, the epilogue

``blocking``, ``config``, ``tuning``
    sizes by registers and caches; a configuration; their space
``dot_products``
    instructions of int8, int16 and bfloat16
``operand_a``, ``operand_b``, ``packed_weights``
    where A and B are read from
``kernel``, ``tile``
    the loops; a register tile and its epilogue
``ragged_rows``
    rows in groups, each with a B of its own
``untiled``, ``task_copy``
    depthwise convolutions, GEMV, what has no columns
``emit``, ``template``
    which of these; claims
``norm_gemm_template``, ``grouped_gemm_template``
    a norm in front; several products in a launch
``unpacked_split``
    column splits that are refused
"""
