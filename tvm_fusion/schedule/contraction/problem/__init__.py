"""What a contraction computes, before any kernel is chosen.

A group's stages are read as one sum of products with epilogues (``sum_of_products``,
``results``), whose axes are M, N and K of a batch of GEMMs (``gemm_view``). What a product may
have besides:

    around it     a norm in front (``norm_prologue``, ``norm_scale``), padding (``padding``)
    its columns   gate and up, Q K V of a joined weight: ``column_split``, cut by ``cut_axis``
    its heads     sums over a head's columns, as of Q and K that are normalized: ``head_sum``
    its rows      groups that end where a tensor says, each with a B of its own: ``ragged_rows``
    behind it     everything that needs nothing else, of few rows: ``epilogue_proposals``
    results       beside sums of groups of columns (``group_sums``) or of rows (``row_statistics``,
                  ``row_values``), or as a part of a concatenation (``concat_epilogue``)
                  pooled: of images (``pool``), of rows in the order of windows (``pooled_rows``)
    several       products of one program: ``grouped_products``
    its weights   numbers of few bits with a scale a block: ``block_quantized``

``prim_func`` and ``fuse_epilogue`` write TensorIR that TVM's own schedules take,
``packing_function`` what packs a constant at compile time; ``result_traffic`` counts bytes of
results. ``template`` is the base of the templates of CPUs and GPUs.
"""
