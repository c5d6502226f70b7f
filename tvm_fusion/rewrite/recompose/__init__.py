"""Recomposition: operators that exporters decomposed, matched by structure and never by name.

``recompose``  the pass: every ``pattern`` of the table ``patterns`` is tried, and where two fit the
               one is taken that has the lower ``price`` by the planner
``attention``, ``norms``, ``softmax``, ``activations``, ``rotary``
               the patterns; ``pairs``: rows in pairs of elements, which rotary embeddings turn
``matching``   what they compare expressions by
"""
