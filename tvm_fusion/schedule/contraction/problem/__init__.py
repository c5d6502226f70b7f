"""What a contraction computes, before any kernel is chosen.

A group's stages are read as one sum of products with epilogues (``sum_of_products``,
``results``), whose axes are M, N and K of a batch of GEMMs (``gemm_view``). What a product may
have besides:

    in front of it  a norm: ``norm_prologue``, ``norm_scale``
    its columns     gate and up, Q K V of a joined weight: ``column_split``
    its rows        groups that end where a tensor says, each with a B of its own: ``ragged_rows``
    its results     what is computed of them before they are stored: ``epilogue``; pooled images:
                    ``pool``; their bytes: ``result_traffic``
    several         products of one program: ``grouped_products``
    its weights     numbers of few bits with a scale a block: ``block_quantized``

``functions`` has the PrimFuncs that TVM's own schedules take, and those that pack constants.
``template`` is the base of the templates of CPUs and GPUs.
"""
