"""TensorIR, read and written.

* ``expressions``: questions and small changes.
* ``loops``: loops, thread bindings, substitutions; ``task_kernel``: kernels with local variables.
* ``integers``, ``integer_ranges``: arithmetic that wraps around, and its bounds; ``polynomial``:
  floor division by symbolic extents; ``whole_extents``: extents that are whole numbers of steps.
* ``hyperbolic``: functions by exponentials; ``ragged``: rows in groups that end at offsets.
"""
