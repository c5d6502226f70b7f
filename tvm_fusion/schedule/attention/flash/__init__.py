"""FlashAttention on tensor cores: softmax in registers, between two products of fragments.

    block (batch, head, tile of queries) in grid:
      q_frag;  for tile n of visible keys:
        s = q * k(n)                     mma.sync, wgmma, MFMA or WMMA
        m_new, rescale, p = exp(s - m_new), l += p             accumulators of s are fragments of p
        acc += p * v(n)
      acc / l -> shared memory -> results in vectors

``problem``, ``grid``
    operands of a half type; blocks
``loads``, ``copies``, ``prologue_cost``
    operands into shared memory, computed ones too
``block``
    which keys are visited; a thread's buffers, and where scores and results lie in them
``kernel``
    the PrimFunc with mma.sync
``products``, ``softmax``, ``epilogue``
    its steps
``config``, ``model``
    numbers, and the estimate that chooses them
``tma``
    Hopper: a producer with TMA, and consumers that multiply in turns
``wave``
    AMD: MFMA and WMMA
"""
