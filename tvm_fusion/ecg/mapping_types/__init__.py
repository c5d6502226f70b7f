"""Mapping types: how output elements depend on those of an input.

* ``table``: the types, and what fusing two of them gives.
* ``scope``: what surrounds a statement; ``loads``: elements that an expression reads; ``inverse``:
  iterators from the indices that are written; ``place``: what a store reads, by those indices.
* ``evaluate``: index expressions at many points; ``enumerate``: maps element by element.
* ``decide``: the type of one input and output; ``classify``: of all in a PrimFunc.
"""
