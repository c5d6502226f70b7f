"""Attention: two products with a softmax between them, as one kernel.

    out = epilogue(softmax(score(q @ k)) @ v)        no scores in memory: softmax is computed online

=============  ==================================================================================
problem        the pattern that a group matches: operands, score, masks as bounds, query groups
flash          FlashAttention on tensor cores: mma.sync; TMA and wgmma on Hopper
decode         flash-decoding: few queries, keys split between blocks, a second launch merges
cuda_cores     FlashAttention of any type on CUDA cores
cpu            FlashAttention on CPUs
=============  ==================================================================================

``template`` claims groups, ``forms`` is the table of kernels that it chooses among on a GPU,
``space`` enumerates what may be tuned.
"""
