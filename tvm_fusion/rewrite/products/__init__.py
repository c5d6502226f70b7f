"""Products of a graph, together.

``join_matmuls`` (one A; ``joined_operands``: its matrices), ``batch_matmuls`` (equal shapes),
``weight_layout`` (constant weights as kernels read them), ``transposed_phases`` (transposed
convolutions by phases).
"""
