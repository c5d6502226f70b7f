"""Tensor parallelism: a model whose weights are spread over several workers.

``shard``
    what is split, what that costs and saves, and the functions of each worker
``plan``
    decisions, and how tensors are spread
``rewriter``, ``rules``, ``products``, ``views``
    a function rewritten operator by operator
``peer_sums``, ``peer_sum_kernel``
    small sums over GPUs' memory, with residual and norm: a pass behind rewriting, its kernel
"""
