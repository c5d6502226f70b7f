"""``torch.export`` programs before conversion.

``importer`` reads one, with its buffers; ``call_tree`` is how its module is called; ``decompose``
(with ``attention``, ``losses`` and ``half_decompositions``) writes composed operators, ``dims`` are
its dimensions.
"""
