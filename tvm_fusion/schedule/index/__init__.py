"""Indices, accesses and what is counted of them: read by templates of all devices.

``address``, ``strides``  where an access goes, and what it costs in vectors
``index_ranges``          indices simplified by the ranges of a tile's loops
``inline``, ``estimate``  a program as one expression; its operations and bytes
``design_space``          configurations as plain data; ``proposals``: graph traversals
"""
