"""Memory: copies, tiles in shared memory, and vectors.

``cp_async``, ``tma``, ``mbarrier``        instructions
``pipeline``                               rings of stages that asynchronous copies fill, by commit
                                           groups or by barriers
``shared_tiles``, ``swizzle``              tiles in shared memory, without bank conflicts
``vector_moves``, ``lds``
                                           what threads do with them, by vendor; AMD's
``vector_loads``, ``streaming``            a thread's tile in vectors, unaligned, evicted first
"""
