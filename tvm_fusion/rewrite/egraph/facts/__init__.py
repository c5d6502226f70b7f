"""Facts that conditions of laws ask for.

``extents`` of shapes, ``axes`` of reductions, ``weights`` of nodes: arithmetic and launches.
"""
