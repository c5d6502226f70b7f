"""Elementwise kernels on a GPU: one launch, coalesced vectors of 16 bytes.

``kernel``, ``config``                  the PrimFunc; how blocks compute each iteration space
``vectors``, ``vector_access``          vectorized maps; one load or store of a thread
``transposes``, ``transpose_config``    transposes through shared memory; their tiles
``alignment``                           how vectors are aligned in memory
"""
