"""Matrix instructions of NVIDIA GPUs and their operands.

``mma_sync`` with ``ldmatrix``; ``wgmma`` with its matrix descriptors, and ``warp_specialized``:
producers and consumers.
"""
