"""Mechanisms that CPU kernels share.

``register_tile`` (accumulators, and the loops around them), ``tile_block`` (accumulators in tile
registers), ``vector_loops`` (rows in vectors and a rest), ``transpose`` (square tiles by shuffles),
``schedule`` with ``block_info``: one generic schedule for the rest.
"""
