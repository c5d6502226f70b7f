"""Operands of a tiled GEMM, from global to shared memory.

``tile``               copies of the tiles of A or B
``chunks``             how 16 bytes of an operand are read, in tiles of any shape
``layout``             where they lie in shared memory
``turned``             copies that transpose, for instructions that want rows of K
``window_copies``      copies of an image under a window
"""
