"""FlashAttention on CPUs: tiles of keys in the level-2 cache, products by register tiles.

    parallel for batch, head, block of queries:  for tile of keys:
      pack k and v;  for rows of queries:  s = q @ k; online softmax; acc += p @ v
    or, of small heads, queries as lanes (``query_lanes``): no reduction within a vector

``config``, ``query_lanes_config``  tiles; ``kernel``, ``query_lanes``: the two loop nests
``products``, ``tile_products``     both products of the first: vectors in float32, AMX's bfloat16
``tile_config``                     tiles of the latter, and when they pay
``pack_kv``, ``visible_keys``       tiles of keys and values; which are left out
``softmax``, ``epilogue``           the steps between and behind the products
"""
