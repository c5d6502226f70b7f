"""Products of a graph, together.

``join_matmuls`` (one A), ``batch_matmuls`` (equal shapes), ``weight_layout`` (constant weights as
kernels read them), ``transposed_phases`` (transposed convolutions by phases).
"""
