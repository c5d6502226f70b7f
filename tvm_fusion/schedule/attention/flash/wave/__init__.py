"""AMD: MFMA and WMMA, of which each lane has one query.

``config``             a configuration, and the waves of a block
``loads``              keys and values into LDS
``block``              a wave's fragments, scores and results
``kernel``             the PrimFunc
"""
