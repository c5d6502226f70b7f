"""Shapes and extents.

* ``apply_ranges``, ``read``, ``resolve_shapes``, ``unify``: symbolic extents from ranges,
  match_cast, shapes that are computed at run time.
* ``fold_zero``, ``concat_empty``: tensors without elements, by ``empty_operands``.
* ``clip_pool_window``: windows that are larger than the padded input.
"""
