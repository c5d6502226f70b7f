"""Flash-decoding: few queries, so that keys and values are read once, at the bandwidth of memory.

    first launch    block (KV head, split of the keys):  q in registers; for keys of the split:
                      s = q * k; online softmax; acc += p * v        a ring of asynchronous copies
                      partial acc, m, l -> memory
    second launch   merge the splits of a row; epilogue

A cluster of the blocks of a row needs no second launch, where the device has clusters and the
splits fit one.

``config``, ``mma_config``  how keys are split; tensor cores
``split_kv``                what a block does, on CUDA cores (``split_kv_simt``) or on tensor cores
                            (``split_kv_mma``)
``kv_pipeline``             the ring
``reduce``                  the second launch
"""
