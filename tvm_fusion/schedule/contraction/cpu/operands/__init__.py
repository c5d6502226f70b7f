"""Where a CPU's GEMM reads A and B from.

``a``, ``b``           rows of A; panels of B, packed at compile time or by a task
``packed_weights``     the layouts of a constant B
``tiles``              A a tile at a time, for tile registers
``computed_a``         A that a task computes first
``halves``             B of half types without an instruction, in float32 panels
``unpacked_split``     column splits that are refused
"""
