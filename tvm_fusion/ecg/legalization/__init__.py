"""Operators become TensorIR.

* ``legalize``: the pass; ``expand``: one operator by itself, spliced in its place; ``operators/``:
  what TVM writes wrongly or slowly, a family of operators per file.
* ``accumulate``, ``narrow``: sums of half types in float32, means whose sums leave its range;
  ``bound_indices``: indices that are data stay inside of buffers.
* ``unlowered``, ``composites``: what is refused by name.
"""
