"""Mechanisms that GPU kernels share, each once, with the warp size as a parameter.

Instructions, as device functions: ``cp_async``, ``tma``, ``mbarrier``, ``ldmatrix``,
``movmatrix``, ``mma_sync``, ``wgmma`` with ``wgmma_operand`` (its matrix descriptors).

``pipeline``, ``warp_specialized``      rings of stages that asynchronous copies fill, by commit
                                        groups or by barriers; producers and consumers
``shared_tiles``, ``swizzle``           tiles in shared memory, without bank conflicts
``vector_moves``, ``lds``               what threads do with them, by vendor; AMD's
``vector_loads``, ``shifted_loads``, ``streaming``
                                        a thread's tile in vectors, unaligned, evicted first
``register_buffers``, ``register_copies``, ``register_moves``, ``half_pairs``
                                        registers: filled, copied through, packed
``warp``, ``block_reduce``, ``row_threads``, ``exponential``
                                        reductions over a warp and a block; softmax's exponential
``lane_moves``, ``anchored_sums``       AMD: reductions without shuffles; sums kept in their loops
``launch``, ``dlight``                  limits of a launch; DLight's rules for the rest
"""
