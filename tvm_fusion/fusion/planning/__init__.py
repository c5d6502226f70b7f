"""The plan of a function's groups.

* ``partition``: groups so far, and how one is merged; ``merge``: the verdict on an edge.
* ``plan``: seeds, proposals, merges; ``leftover_pairs``, ``recompute``, ``views``: what is tried
  when no edge is left; ``position_masks``: one mask for each reader, before anything is proposed.
"""
