"""FlashAttention on CUDA cores: float32, and what tensor cores do not take.

    block of queries:  for tile of keys:  k -> shared; s = q . k; online softmax
                                          v -> shared; acc += p * v

``config`` has tiles that fit into shared memory, ``kernel`` is the PrimFunc.
"""
