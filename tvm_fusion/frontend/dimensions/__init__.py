"""Symbolic dimensions of a model, from the importer on.

``symbolic`` names and bounds them, ``steps`` counts them in multiples, ``extents`` are expressions
of them, ``signatures`` tell them; ``findings`` are all that keeps a model from being compiled.
"""
